"""electra-lab prepare: the store that `run` then finds, its content, and unreadable data."""

import gzip
import json
import random
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from electra_lab.data.splits import split_of
from electra_lab.presentation import console
from tests.electra_lab.cli.conftest import Lab
from tests.helpers import write_experiment

pytestmark = pytest.mark.usefixtures("no_report")
LINES = [f"The cat number {n} sat on the mat, and saw {n + 1} dogs. Then it went home again." for n in range(60)]
JSON = "".join(json.dumps({"text": line}) + "\n" for line in LINES)
ROWS = "{type: json_lines, paths: [text.jsonl]}"
MIXED = "{type: text_files, paths: [mixed.txt], documents: lines}"


def written(folder: Path, corpus: str, content: str | bytes, name: str = "text.jsonl") -> Path:
    file = write_experiment(folder, corpus=corpus, data="{sequence_length: 16, held_out: 0.4}")
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def prepared(lab: Lab, file: Path, *options: object) -> Any:
    code, out, err = lab("prepare", file, "--json", *options)
    assert code == 0, err
    return json.loads(out)


def page_of(out: str) -> Path:
    return Path(out.splitlines()[-1].split(maxsplit=1)[1])


def test_a_run_finds_what_was_prepared(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, ROWS, JSON)
    code, out, err = lab("prepare", file)
    assert (code, err.splitlines()[0]) == (0, "reading the corpus (once; the result is kept)")
    facts = dict(line.split(maxsplit=1) for line in out.splitlines()[1:] if "  " in line.strip())
    store = Path(out.splitlines()[0].removeprefix("token store "))
    assert store.parent == Path.cwd() / "runs/.store"
    documents = [int(facts[split].split()[0]) for split in ("train", "validation", "test")]
    assert sum(documents) == len(LINES)
    assert lab("prepare", file) == (0, out, "")
    code, _, err = lab("run", file, "--out", "out")
    assert (code, "reading the corpus" in err) == (0, False)
    data = json.loads(Path("out/provenance.json").read_text())["data"]
    assert (data["store"], list(data["documents"].values())) == (store.name, documents)


def test_the_answer_for_programs(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, ROWS.replace("}", ", on_error: skip}"), f'{JSON}not json\n{{"text": 3}}')
    answer = prepared(lab, file)
    assert (answer["left_out"], answer["lost"], answer["unknown"]) == ({}, {"records": 2}, 0)
    assert (answer["read"], answer["ignored"]) == ([str(tmp_path / "text.jsonl")], [])
    assert [line.split(": ")[0] for line in answer["skipped"]] == [f"{tmp_path}/text.jsonl:{n}" for n in (61, 62)]
    manifest = json.loads((Path(answer["store"]) / "manifest.json").read_text())
    train = manifest["shards"]["train"]["train-00000"]
    assert (answer["tokens"]["train"], answer["overlap"]) == (train["tokens"], manifest["overlap"])
    assert answer["characters_per_token"] == pytest.approx(train["characters"] / (train["tokens"] - train["documents"]))
    assert lab("prepare", file)[1].count("not read      records: 2\n") == 1


def test_the_page_shows_rows_as_the_model_reads_them(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, ROWS, JSON)
    code, out, _ = lab("prepare", file, "--inspect", "--set", "packing={type: segments}")
    page = page_of(out)
    html = page.read_text()
    assert (code, page.parent) == (0, Path.cwd() / "runs/.store")
    for part in ("cat", "[CLS]", "[SEP]", 'class="word second"', "Packed by segments", "<svg", "% of them padding"):
        assert part in html
    assert "mathdefault" not in html
    assert "http" not in html.replace("http://www.w3.org", "")
    assert " | <span" not in html
    lab("prepare", file, "--inspect", "--set", "packing={type: contiguous, attention: within_documents}")
    separated = page.read_text()
    assert "Attention stays within each document" in separated
    assert " | <span" in separated


def test_a_store_trains_without_its_corpus(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, ROWS, JSON)
    store = Path(prepared(lab, file)["store"])
    there = tmp_path / "copy"
    store.rename(there)
    (tmp_path / "text.jsonl").unlink()
    named = ("--set", f"data.store={there}")
    answer = prepared(lab, file, *named)
    assert (answer["store"], answer["read"]) == (str(there), [])
    code, _, err = lab("run", file, "--out", "out", *named)
    assert (code, f"using the token store {there} of a corpus json_lines, which" in err) == (0, True)
    assert json.loads(Path("out/provenance.json").read_text())["data"]["store"] == store.name
    for settings, differences in (
        (["tokenizer.vocab_size=150"], ["tokenizer.vocab_size (200, here 150)"]),
        (["tokenizer={type: bytes}"], ["tokenizer.type (wordpiece, here bytes)"]),
        (["corpus={type: docstrings}", "data.split=by_order"],
         ["corpus.type (json_lines, here docstrings)", "data.split (None, here by_order)"]),
    ):  # fmt: skip
        err = lab.fails(2, "run", file, *named, *chain.from_iterable(("--set", setting) for setting in settings))
        assert f"was made with another {', '.join(differences)}. " in err
    assert "is itself a token store" in lab.fails(2, "prepare", file, *named, "--rebuild")
    before = sorted(there.iterdir())
    for lost in ("train-00000.bin", "manifest.json", "tokenizer.json", "counts.npy"):
        (there / lost).unlink()
        for verb in ("run", "prepare"):
            assert lab.fails(3, verb, file, *named).endswith("Copy it again, or name another folder.\n")
        for command in (["check", file], ["run", file, "--dry-run"]):
            code, _, err = lab(*command, *named)
            assert (code, "Copy it again, or name another folder." in err) == (0, True)
    assert {*there.iterdir()} < {*before}


@pytest.mark.parametrize(
    ("launcher", "code", "said"),
    [
        (("--launcher", "{type: local, workers: 2, pin: false}"), 0, ""),
        (("--workers", "2"), 0, ""),
        (("--launcher", "lokal"), 2, "--launcher lokal: type: no launcher is called 'lokal'. Did you mean 'local'?"),
        (("--launcher", "{type: local, wrokers: 2}"), 2, "wrokers: "),
    ],
)
def test_launchers_by_name(lab: Lab, tmp_path: Path, launcher: tuple[str, ...], code: int, said: str) -> None:
    found, out, err = lab("prepare", written(tmp_path, ROWS, JSON), *launcher)
    assert (found, bool(out), said in err) == (code, code == 0, True)


def test_all_that_is_lost_is_counted_and_all_files_are_listed(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    good = "".join(f"{line}\n" for line in LINES).encode()
    (folder / "README.md").write_bytes(b"About.\n")
    (folder / "a.txt").write_bytes(good + b"M\xe4dchen\n" + good.upper() + b"caf\xe9\nlast line\n")
    (folder / "b.txt.gz").write_bytes(gzip.compress(good.title())[:-8])
    (folder / "more.jsonl").write_text(JSON)
    (folder / "table.csv").write_text("text\none\n")
    file = written(tmp_path, "{type: text_files, paths: [mixed], documents: lines, on_error: skip}", b"")
    answer = prepared(lab, file)
    assert answer["lost"] == {"lines": 2, "ends of files": 1}
    kept = 2 + len(LINES) * 3
    assert sum(answer["documents"].values()) + sum(answer["left_out"].values()) == kept
    assert [Path(name).name for name in answer["read"]] == ["README.md", "a.txt", "b.txt.gz"]
    assert [Path(name).name for name in answer["ignored"]] == ["more.jsonl", "table.csv"]
    text = lab("prepare", file, "--inspect")[1]
    page = page_of(text).read_text()
    parts = ("README.md", "more.jsonl", "table.csv", "a.txt:61: byte", "b.txt.gz: is cut", "ends of files: 1")
    assert all(part in text and part in page for part in parts)


def test_many_documents_left_out_are_pointed_out(lab: Lab, tmp_path: Path) -> None:
    """Repeated lines, as in logs: most are similar to held-out ones."""
    frame = " ".join(f"word{n}" for n in range(40))
    file = written(tmp_path, MIXED, b"")

    def answered(framed: int) -> tuple[Any, str]:
        lines = [*(f"{frame} {n}" for n in range(framed)), *(f"{n} {n + 1}" for n in range(2000))]
        (tmp_path / "mixed.txt").write_text("\n".join(lines))
        return prepared(lab, file), lab("prepare", file)[1]

    answer, said = answered(600)
    keeping, warning = answer["keeping_overlap"], "of the training documents are left out"
    assert answer["left_out"]["they share too much with held-out text"] > answer["documents"]["train"] / 9
    assert warning in said
    # The suggested overlap keeps all documents, and a hundredth less does not.
    assert 0.1 < keeping <= 1
    assert f"data.overlap: {keeping:g} would keep" in said
    kept, less = (prepared(lab, file, "--set", f"data.overlap={share}") for share in (keeping, keeping - 0.01))
    assert (kept["left_out"], bool(less["left_out"])) == ({}, True)
    answer, said = answered(100)
    assert answer["left_out"]["they share too much with held-out text"] > 0
    assert warning not in said


@pytest.mark.parametrize(("split", "repeats"), [("null", 1), ("by_order", 1), ("null", 3)])
def test_lines_that_a_pattern_matched_are_counted(lab: Lab, tmp_path: Path, split: str, repeats: int) -> None:
    """A line in three has no time stamp, and one in four no host; a mixture repeats the training lines."""
    times, hosts = [n % 3 > 0 for n in range(60)], [n % 4 > 0 for n in range(60)]
    lines = [f"{'10:01 ' * times[n]}line {n}{f' host{n}' * hosts[n]}" for n in range(60)]
    corpus = MIXED.replace("}", r", remove: '^\d+:\d+ ', group: 'host\d+'}")
    if repeats > 1:
        corpus = f"{{type: mixture, parts: [{{corpus: {corpus}, repeats: {repeats}}}]}}"
    file = written(tmp_path, corpus, "\n".join(lines), "mixed.txt")
    options = ("--set", f"data.split={split}", "--set", "data.overlap=1")
    answer, said = prepared(lab, file, *options), lab("prepare", file, *options)[1]
    keys = [f"host{n}" if hosts[n] else f"line {n}" for n in range(60)]
    weights = [repeats if split_of(key.encode(), 0.4) == "train" else 1 for key in keys]
    for name, matches in (("removed", times), ("keyed", hosts)):
        assert answer[name] == sum(weight for weight, match in zip(weights, matches, strict=True) if match)
        assert f"{answer[name]} of {sum(answer['documents'].values())} documents" in said


@pytest.mark.parametrize("repeats", [1, 3])
def test_sequences_and_their_names_are_counted(lab: Lab, tmp_path: Path, repeats: int) -> None:
    """Two sequences share each name; long ones become several documents."""
    draw = random.Random(0)
    records = [(f"mir{n // 2} {n}", "".join(draw.choices("ACGT", k=10 + n))) for n in range(60)]
    corpus = "{type: fasta, window: 24, overlap: 4, paths: [a.fa]}"
    if repeats > 1:
        corpus = f"{{type: mixture, parts: [{{corpus: {corpus}, repeats: {repeats}}}]}}"
    file = written(tmp_path, corpus, "".join(f">{name}\n{letters}\n" for name, letters in records), "a.fa")
    tokens = ("--set", "tokenizer={type: characters, alphabet: ACGT}", "--set", "data.overlap=1")
    answer, said = prepared(lab, file, *tokens), lab("prepare", file, *tokens)[1]
    assert (answer["records"], answer["keys"]) == (60, 30)
    assert answer["keyed"] == sum(answer["documents"].values()) > 60
    assert "60 records" in said
    assert "30 keys" in said


@pytest.mark.parametrize(
    ("corpus", "content", "said"),
    [
        ("json_lines, paths: [a.jsonl]", b'{"text": "a"}\n{"text"\n', "a.jsonl:2: "),
        ("text_files, paths: [a.txt]", b"", "a.txt."),
        ("parquet, paths: [a.parquet]", b"PAR1 not really", "a.parquet: "),
        ("mds, paths: [index.json]", b'{"shards": []}', "index.json: "),
        ("fasta, paths: [a.fa]", b">a\nAC\n>b\nMEFL\n", "a.fa:4: 'E' is not a letter of dna"),
        ("fasta, paths: [a.fa]", b">a\n>b\nAC\n", "a.fa:1: the record 'a' has no letters. "),
        ("ids, paths: [a.jsonl], vocab_size: 9", b'{"ids": [8, 9]}', "a.jsonl:1: has the id 9, but "),
        ("text_files, paths: [a.txt], remove: xyz", b"the cat", "corpus.remove 'xyz' finds nothing in 1 "),
        ("text_files, paths: [a.txt], group: xyz", b"the cat", "corpus.group 'xyz' finds nothing in 1 "),
    ],
)
def test_text_that_cannot_be_read(lab: Lab, tmp_path: Path, corpus: str, content: bytes, said: str) -> None:
    [name] = re.findall(r"\[(.*)\]", corpus)
    err = lab.fails(3, "prepare", written(tmp_path, f"{{type: {corpus}}}", content, name))
    [line] = [line for line in err.splitlines() if not line.startswith("reading the corpus")]
    assert said in line
    assert not Path("runs").exists()


def test_a_log_sees_the_progress_twice_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(console.Console, "say", lambda _, text: said.append(text))
    with console.Phases(console.Console()) as progress:
        for done in (0, 10_000_000, 31_000_000, 40_000_000, 62_000_000):
            progress("tokenizing", done, 124_000_000)
    assert said == [
        "tokenizing: 25%, 31 million characters, 1.0 million/s, 93 s left",
        "tokenizing: 50%, 62 million characters, 1.0 million/s, 62 s left",
    ]


OWN = '''
from registry import corpora, launchers


@corpora.register("mine")
class Mine:
    """Mine."""

    def __init__(self, /): pass

    def __iter__(self):
        yield from (f"the cat number {n} sat on the mat" for n in range(60))

    def fingerprint(self):
        return "same"

    FILES


@launchers.register("mine")
def mine(*, workers: int = 1, threads: int = 1):
    "Mine."
'''


@pytest.mark.parametrize(
    ("files", "launcher", "code"),
    [
        ("files = ['of', 'its', 'own']", (), 0), ("def files(self): return None", (), 2),
        ("def files(self): return ['a'], ['b', 'c'], []", (), 2), ("def files(self): return 3, 4", (), 2),
        ("", ("--launcher", "mine"), 2),
    ],
)  # fmt: skip
def test_plug_ins_that_break_their_contract(lab, tmp_path, files, launcher, code) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("FILES", files))
    found, _, err = lab("prepare", written(tmp_path, "{type: mine}\nimports: [own.py]", ""), *launcher)
    assert found == code, err
    assert code == 0 or re.search(r"own\.py:\d+: \w+ 'mine' ", err), err


@pytest.mark.parametrize(
    ("letters", "tokenizer", "tokens", "characters"),
    [
        ("efghACGT", "{type: characters, alphabet: ACGT}", 0.5, 0.5),
        ("U U U ACGACGACGACG", "{type: words, pattern: '\\S+', min_frequency: 60}", 1 / 4, 12 / 15),
        ("ACGTACGTACGTN", "{type: characters, alphabet: ACGT}", 1 / 13, 1 / 13),
        ("ACGT ACGT ACGT ACGUACGUACGUACGU", "{type: wordpiece, vocab_size: 100, lowercase: false}", 0.0, 0.0),
    ],
)
def test_unknown_text_is_pointed_out_and_much_of_it_an_error(
    letters: str, tokenizer: str, tokens: float, characters: float, lab: Lab, tmp_path: Path
) -> None:
    sections = {"data": "{sequence_length: 16, held_out: 0.4, overlap: 1}", "tokenizer": tokenizer}
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": letters, "key": n}) + "\n" for n in range(60)))
    file = write_experiment(tmp_path, corpus=ROWS.replace("}", ", key: key}"), **sections)
    most = max(tokens, characters)
    if most > 0.2:
        for verb in (["prepare", file], ["run", file]):
            err = lab.fails(3, *verb)
            assert f"{file}:" in err
            assert all(word in err for word in ("tokenizer", "data.unknown", f"{most:.2%}"))
    answer = prepared(lab, file, "--set", f"data.unknown={most}")
    assert [answer["unknown"], answer["unknown_characters"]] == pytest.approx([tokens, characters])
    _, _, err = lab("prepare", file, "--set", f"data.unknown={most}")
    assert ("note: " in err) == (most > 0.01)
