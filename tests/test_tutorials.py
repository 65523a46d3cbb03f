"""The tutorials: their files and commands run as written, in order, with trainings of a few steps."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from electra_lab.cli import app
from electra_lab.corpora.text_files import TextFiles
from registry import Document
from tests.helpers import ROOT

QUICK = ("train.steps=4", "train.batch_size=4", "schedules.learning_rate.warmup_steps=0", "evaluate.tokens=2000",
         "evaluate.test_tokens=2000")  # fmt: skip
NARROW = ("embedding.dim=16", "discriminator.dim=16", "discriminator.heads=2")
# The settings that are added to commands matching these shell patterns.
SMALL = {
    "run *": QUICK,
    "resume *": ("train.steps=8",),
    "ablate *": (*QUICK[1:], "budget.flops=null", "budget.steps=4", "seeds=[0,1]"),
    "finetune *": ("train.epochs=1", "data.train_examples=20", "seeds=[0]"),
    "* *domain_deberta.yaml": (*NARROW, "generator.dim=16", "generator.heads=2"),
    "run *_modernbert.yaml": NARROW,
}
WORDS = ["the", "a", "cat", "dog", "house", "tree", "sat", "stood", "saw", "slowly", "under", "near", "green", "old"]


def logs(folder: Path) -> None:
    """Two days of logs, compressed, and today's."""
    (folder / "logs").mkdir()
    for day in (1, 2, 3):
        lines = [f"2026-11-0{day} 12:00:{n % 60:02} host={n % 7} web: GET /cart{n % 11} in {n} ms" for n in range(600)]
        text = "\n".join(lines).encode()
        (folder / "logs" / f"{day}.log.gz").write_bytes(gzip.compress(text))
    (folder / "today.log").write_bytes(text)


def sequences(folder: Path) -> None:
    """A genome, other sequences and visits."""
    rng = random.Random(0)
    (folder / "genome").mkdir()
    fasta = "".join(f">chromosome{n} of it\n" + "".join(rng.choices("ACGT", k=3000)) + "\n" for n in range(80))
    (folder / "genome" / "a.fa.gz").write_bytes(gzip.compress(fasta.encode()))
    (folder / "new.fa").write_text(">one first\nACGT\nacgt\n>two\nTTTT\n")
    visits = [{"user": f"u{n % 200}", "ids": rng.choices(range(5, 2000), k=9)} for n in range(400)]
    (folder / "visits.jsonl").write_text("\n".join(map(json.dumps, visits)))


def sentences(folder: Path) -> None:
    """A book, and the script that damages it."""
    rng = random.Random(0)
    (folder / "books").mkdir()
    found = [" ".join(rng.choices(WORDS, k=9)).capitalize() + "." for _ in range(4000)]
    paragraphs = [" ".join(found[start : start + 5]) for start in range(0, len(found), 5)]
    (folder / "books" / "one.txt").write_text("\n\n".join(paragraphs))
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")


def labelled(folder: Path) -> None:
    """Texts with labels, to train and to validate."""
    rows = ["a cat near the house,animal", "a tree near the house,plant", "a dog near the house,animal"]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *rows * 8]))


def shipped(folder: Path) -> None:
    """The experiments of a clone, and a user's texts."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=200)) for _ in range(60)]
    (folder / "my_corpus").mkdir()
    for number, text in enumerate(texts):
        (folder / "my_corpus" / f"{number}.txt").write_text(text)
    (folder / "gutenberg").symlink_to("my_corpus")
    (folder / "simplewiki").mkdir()
    (folder / "simplewiki" / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))


def released(folder: Path) -> None:
    """A domain, labels, and narrow models in the files that the hub has, where the commands would download them."""
    import torch
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

    from electra_lab.tokenizers.wordpiece import wordpiece

    labelled(folder)
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=100)) for _ in range(400)]
    (folder / "data" / "domain").mkdir(parents=True)
    (folder / "data" / "domain" / "one.txt").write_text("\n\n".join(texts))
    sizes: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 510}
    # DeBERTa-v3-small: the discriminator, and next to it the generator with the positions of its mask decoder.
    model = folder / "models" / "deberta-v3-small"
    deberta: dict[str, Any] = {
        **sizes, "intermediate_size": 64, "relative_attention": True, "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "legacy": False,
        "position_biased_input": False, "type_vocab_size": 0,
    }  # fmt: skip
    discriminator = DebertaV2ForMaskedLM(DebertaV2Config(**deberta, num_hidden_layers=6))
    discriminator.config.save_pretrained(model)
    encoder = {name: tensor for name, tensor in discriminator.state_dict().items() if name.startswith("deberta.")}
    torch.save(encoder, model / "pytorch_model.bin")
    generator = DebertaV2ForMaskedLM(DebertaV2Config(**deberta, num_hidden_layers=3))
    positions = {"deberta.embeddings.position_embeddings.weight": torch.randn(512, 16)}
    torch.save({**generator.state_dict(), **positions}, model / "pytorch_model.generator.bin")
    generator.config.to_json_file(model / "generator_config.json")
    (model / "spm.model").write_bytes((ROOT / "tests" / "data" / "sentencepiece" / "deberta.model").read_bytes())
    # ModernBERT-base.
    model = folder / "models" / "ModernBERT-base"
    ids = {"pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
    ModernBertForMaskedLM(ModernBertConfig(**sizes, **ids, intermediate_size=24)).save_pretrained(model)
    wordpiece(texts, vocab_size=500).save(str(model / "tokenizer.json"))


PAGES: dict[str, Callable[[Path], object]] = {
    "first-run": shipped, "own-text": shipped, "log-anomalies": logs, "sequences": sequences,
    "broken-sentences": sentences, "finetune-predict": labelled, "continue": released,
    **dict.fromkeys(("own-objective", "ablation-question"), lambda _: None),  # these need no other files
}  # fmt: skip
# The output of the last commands: a file, its last columns, the number of its rows.
WRITTEN = {
    "log-anomalies": ("scored.csv", "score,percentile", 1500),
    "sequences": ("scored.csv", "name,text,score", 2),
    "finetune-predict": ("labelled.csv", "probability_xml", 2),
}
NAMED = re.compile(r"# (\w+\.(?:yaml|py))\b")


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a page that are to be executed; console blocks as their commands."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.M | re.S):
        if kind == "console":
            lines = block.replace("\\\n", "").splitlines()
            yield from (("console", line[2:]) for line in lines if line.startswith("$ "))
        elif kind != "text":
            yield kind, block


@pytest.fixture
def here(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """A shell in an empty folder that knows `python` and an `electra-lab` whose trainings are short."""
    options = {verb: " ".join(f"--set {option}" for option in changes) for verb, changes in SMALL.items()}
    cases = "".join(
        f'[[ "$1 $2" = {begin.replace(" ", "?")} ]] && set -- "$@" {words}\n' for begin, words in options.items()
    )
    lab = f'{cases}exec "{sys.executable}" -m electra_lab "$@"'
    for name, line in (("electra-lab", lab), ("python", f'exec "{sys.executable}" "$@"')):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/bash\n{line}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "work").mkdir()

    def call(command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "BROWSER": "true"}
        words = ["bash", "-o", "pipefail", "-c", command]
        return subprocess.run(
            words, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=3600, check=False
        )

    return call


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_works_from_the_first_command_to_the_last(
    page: str, here: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    PAGES[page](folder)
    for kind, block in steps(page):
        if named := NAMED.match(block):
            (folder / named[1]).write_text(block, encoding="utf-8")
            continue
        if block.startswith("hf download "):
            continue  # from the hub; a narrow model is there
        if kind == "python":
            (folder / "snippet.py").write_text(block, encoding="utf-8")
        done = here("python snippet.py" if kind == "python" else block)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    # The output of the last commands.
    if page in WRITTEN:
        file, columns, number = WRITTEN[page]
        header, *rows = (folder / file).read_text().splitlines()
        assert header.endswith(columns)
        assert len(rows) == number


def parse(words: list[str]) -> str:
    """Return the verb of a command of the lab. Raises click's UsageError."""
    verb, command = words[0], typer.main.get_command(app)
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(command.context_class(command), words)
    command.make_context(name, words)
    return verb


@pytest.mark.parametrize("page", PAGES)
def test_files_of_a_tutorial_have_a_name_and_commands_are_known(page: str) -> None:
    found = list(steps(page))
    assert all(NAMED.match(block) for kind, block in found if kind == "yaml")
    lines = [
        line
        for kind, block in found
        if kind == "console"
        for line in re.findall(r"electra-lab ((?:'[^']*'|[^|>])+)", block)
    ]
    verbs = {parse(shlex.split(line)) for line in lines}
    assert verbs & {"run", "ablate", "finetune"}, "nothing is trained"


# Lines of logs: the time stamp, and the rest of the line, which begins with what looks similar.
STAMPED = [
    ("2026-11-05 12:00:00,123 ", "ERROR [main] com.shop.Cart: cannot pay"), ("", "at com.shop.Cart.pay(Cart.java:42)"),
    ("", "java.lang.IllegalStateException: no cart 7"), ("", "Caused by: java.io.IOException: 10.0.0.1 closed"),
    ("2026-11-05T12:00:00.123456Z ", "INFO 2026-11-05 12:00:00 is over"), ("", "2026-11-05 is a day"),
    ("[2026-11-05T12:00:00+01:00] ", "[main] up"), ("", "[main] INFO x"), ("2026-11-05 12:00:00.5 +0000 ", "2 3 rows"),
    ("2026/11/05 12:00:00 ", "[error] 31#31"), ("", "... 12 more"), ("2026-11-05 12:00:00", ""),
    ("Nov  5 12:00:00 ", "web1 sshd[2]: closed"), ("Nov 15 12:00:00 ", "web1 May 15"), ("", "May 15 rows were read"),
    ("081109 203615 ", "148 INFO dfs.DataNode: deleted"), ("", "203615 blocks in 10 s"), ("", "12 300 rows"),
]  # fmt: skip
# Of BlueGene/L: label, seconds, day, place, time, place.
OF_BLUE_GENE = [
    ("- 1117838570 2005.06.03 R02-M1 2005-06-03-15.42.50.675872 R02-M1 ", "RAS KERNEL INFO core.1 at 0x1f"),
    ("KERNDTLB 1117838571 2005.06.03 NULL 2005-06-03-15.42.51.675872 NULL ", "RAS KERNEL FATAL data TLB error"),
    ("", "- 7 2005.06.03 a b c d"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "lines"), [("remove: '(.*)'", STAMPED), ("BlueGene/L.*`remove` is `(.*?)`", OF_BLUE_GENE)]
)
def test_patterns_of_time_stamps_match_nothing_else(place: str, lines: list[tuple[str, str]], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "log-anomalies.md").read_text(encoding="utf-8")
    [pattern] = re.findall(place, text)
    (tmp_path / "a.log").write_text("\n".join(f"{stamp}{rest}" for stamp, rest in lines))
    documents = list(TextFiles(paths=[tmp_path / "a.log"], documents="lines", remove=pattern))
    assert documents == [Document(rest, removed=stamp != "") for stamp, rest in lines if rest]


def test_the_same_pattern_is_removed_from_new_lines() -> None:
    """In a shell, too; and the first lines of the page's texts are those with a time stamp of digits."""
    text = (ROOT / "docs" / "log-anomalies.md").read_text(encoding="utf-8")
    [pattern], [words] = re.findall("remove: '(.*)'", text), re.findall(r"(--remove '.*)", text)
    assert shlex.split(words) == ["--remove", pattern]
    [first] = re.findall("--first-line '(.*?)'", text)
    begin = [f"{stamp}{rest}" for stamp, rest in STAMPED if re.match(r"\[|\d", stamp)]
    assert all(re.search(first, line) for line in begin)
    assert not re.search(first, "  at com.shop.Cart.pay(Cart.java:42)")
    assert not re.search(first, "java.io.IOException: 10.0.0.1 closed")


def test_every_tutorial_is_run() -> None:
    """test_extending.py runs the one of components."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("- Tutorials:")[2].partition("- Guides:")[0]
    assert set(re.findall(r"(\S+)\.md", listed)) == {*PAGES, "extending"}
