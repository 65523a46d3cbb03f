"""electra-lab prepare: the store that `run` then finds, what is in it, and what cannot be read."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from tests.electra_lab.cli.conftest import Lab
from tests.helpers import write_experiment

pytestmark = pytest.mark.usefixtures("no_report")
LINES = [f"The cat number {n} sat on the mat, and saw {n + 1} dogs. Then it went home again." for n in range(60)]


def written(folder: Path, corpus: str, content: str | bytes, name: str = "text.jsonl", **sections: str) -> Path:
    file = write_experiment(folder, corpus=corpus, data="{sequence_length: 16, held_out: 0.4}", **sections)
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def jsonl(lines: list[str]) -> str:
    return "".join(json.dumps({"text": line}) + "\n" for line in lines)


def test_a_run_finds_what_was_prepared(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, "{type: json_lines, paths: [text.jsonl]}", jsonl(LINES))
    code, out, err = lab("prepare", file)
    assert code == 0
    assert err.splitlines()[0] == "reading the corpus (once; the result is kept)"
    facts = dict(line.split(maxsplit=1) for line in out.splitlines()[1:] if "  " in line.strip())
    store = Path(out.splitlines()[0].removeprefix("token store "))
    assert store.parent == Path.cwd() / "runs/.store"
    documents = [int(facts[split].split()[0]) for split in ("train", "validation", "test")]
    assert sum(documents) == len(LINES)
    code, again, err = lab("prepare", file)
    assert (code, again, err) == (0, out, "")
    code, out, err = lab("run", file, "--out", "out")
    assert code == 0
    assert "reading the corpus" not in err
    provenance = json.loads(Path("out/provenance.json").read_text())["data"]
    assert provenance["store"] == store.name
    assert list(provenance["documents"].values()) == documents


def test_the_answer_for_programs(lab: Lab, tmp_path: Path) -> None:
    lines = [*LINES, "not json", '{"text": 3}']
    text = jsonl(LINES) + "\n".join(lines[-2:])
    file = written(tmp_path, "{type: json_lines, paths: [text.jsonl], on_error: skip}", text)
    code, out, _ = lab("prepare", file, "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["left_out"], answer["lost"]) == ({}, {"records": 2})
    assert (answer["read"], answer["ignored"]) == ([str(tmp_path / "text.jsonl")], [])
    assert [each.split(": ")[0] for each in answer["skipped"]] == [f"{tmp_path}/text.jsonl:{n}" for n in (61, 62)]
    assert answer["unknown"] == 0
    manifest = json.loads((Path(answer["store"]) / "manifest.json").read_text())
    train = manifest["shards"]["train"]["train-00000"]
    assert answer["tokens"]["train"] == train["tokens"]
    assert answer["characters_per_token"] == pytest.approx(train["characters"] / (train["tokens"] - train["documents"]))
    assert answer["overlap"] == manifest["overlap"]
    assert lab("prepare", file)[1].count("not read      records: 2\n") == 1


def test_the_page_shows_rows_as_the_model_reads_them(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, "{type: json_lines, paths: [text.jsonl]}", jsonl(LINES))
    code, out, _ = lab("prepare", file, "--inspect", "--set", "packing={type: segments}")
    page = Path(out.splitlines()[-1].split(maxsplit=1)[1])
    html = page.read_text()
    assert code == 0
    assert page.parent == Path.cwd() / "runs/.store"
    for part in ("cat", "[CLS]", "[SEP]", 'class="word second"', "Packed by segments", "<svg", "% of them padding"):
        assert part in html
    assert "mathdefault" not in html
    assert "http" not in html.replace("http://www.w3.org", "")
    lab("prepare", file, "--inspect", "--set", "packing={type: contiguous, attention: within_documents}")
    separated = page.read_text()
    assert "Attention stays within each document" in separated
    assert " | <span" in separated
    assert " | <span" not in html


def test_a_store_trains_without_its_corpus(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, "{type: json_lines, paths: [text.jsonl]}", jsonl(LINES))
    store = Path(json.loads(lab("prepare", file, "--json")[1])["store"])
    there = tmp_path / "copy"
    store.rename(there)
    (tmp_path / "text.jsonl").unlink()
    code, _, err = lab("run", file, "--out", "out", "--set", f"data.store={there}")
    assert code == 0
    assert f"using the token store {there} of a corpus json_lines, which is not read" in err
    assert json.loads(Path("out/provenance.json").read_text())["data"]["store"] == store.name
    code, _, err = lab("run", file, "--set", f"data.store={there}", "--set", "tokenizer.vocab_size=150")
    assert code == 2
    assert f"data.store: the token store {there} was made with another tokenizer (" in err
    code, _, err = lab("run", file, "--set", f"data.store={there}", "--set", "corpus={type: docstrings}")
    assert code == 2
    assert "was made with another corpus ({'type': 'json_lines'}, here {'type': 'docstrings'})" in err
    code, _, err = lab("prepare", file, "--set", f"data.store={there}", "--rebuild")
    assert code == 2
    assert "is a finished token store" in err
    (there / "train-00000.bin").unlink()
    code, _, err = lab("run", file, "--set", f"data.store={there}")
    assert code == 3
    assert err.endswith("Copy it again, or name another folder.\n")


def test_a_damaged_store_is_rebuilt_on_request(lab: Lab, tmp_path: Path) -> None:
    file = written(tmp_path, "{type: json_lines, paths: [text.jsonl]}", jsonl(LINES))
    _, before, _ = lab("prepare", file)
    store = Path(before.splitlines()[0].removeprefix("token store "))
    data = bytearray((store / "train-00000.bin").read_bytes())
    data[7] ^= 4
    (store / "train-00000.bin").write_bytes(bytes(data))
    for command in ("prepare", "run"):
        code, _, err = lab(command, file)
        assert code == 3
        assert re.match(rf"{store}: .* \(the checksum of train-00000\.bin is wrong\)\. .* prepare FILE --rebuild$", err)
    assert lab("prepare", file, "--rebuild")[:2] == (0, before)


@pytest.mark.parametrize(
    ("launcher", "code", "said"),
    [
        (("--launcher", "local", "--workers", "2"), 0, ""),
        (("--launcher", "{type: local, workers: 2, pin: false}"), 0, ""),
        (("--workers", "2"), 0, ""),
        (("--launcher", "lokal"), 2, "--launcher lokal: type: no launcher is called 'lokal'. Did you mean 'local'?"),
        (("--launcher", "{type: local, wrokers: 2}"), 2, "wrokers: "),
    ],
    ids=["a name", "a mapping", "workers alone", "a wrong name", "a wrong option"],
)
def test_launchers_by_name(lab: Lab, tmp_path: Path, launcher: tuple[str, ...], code: int, said: str) -> None:
    file = written(tmp_path, "{type: json_lines, paths: [text.jsonl]}", jsonl(LINES))
    found, out, err = lab("prepare", file, *launcher)
    assert found == code
    assert said in err
    assert bool(out) == (code == 0)


def test_all_that_is_lost_is_counted_and_all_files_are_listed(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    folder_option = "{type: text_files, paths: [mixed], documents: lines, on_error: skip%s}"
    good = "".join(f"{line}\n" for line in LINES).encode()
    (folder / "README.md").write_bytes(b"About.\n")
    (folder / "a.txt").write_bytes(good + b"M\xe4dchen\n" + good.upper() + b"caf\xe9\nlast line\n")
    (folder / "b.txt.gz").write_bytes(gzip.compress(good.title())[:-8])
    (folder / "more.jsonl").write_text(jsonl(LINES))
    (folder / "table.csv").write_text("text\none\n")
    for option, lost in {
        "": {"bytes": 8 + len(good) + 5 + 10, "ends of files": 1},
        "_line": {"lines": 2, "ends of files": 1},
    }.items():
        file = written(tmp_path, folder_option % option, b"")
        answer = json.loads(lab("prepare", file, "--json")[1])
        assert answer["lost"] == lost
        kept = 1 + len(LINES) * 2 + bool(option) * (len(LINES) + 1)
        assert sum(answer["documents"].values()) + sum(answer["left_out"].values()) == kept
        assert [Path(name).name for name in answer["read"]] == ["README.md", "a.txt", "b.txt.gz"]
        assert [Path(name).name for name in answer["ignored"]] == ["more.jsonl", "table.csv"]
        text = lab("prepare", file, "--inspect")[1]
        page = Path(text.splitlines()[-1].split(maxsplit=1)[1]).read_text()
        parts = ("README.md", "more.jsonl", "table.csv", "a.txt:61: byte", "b.txt.gz: is cut", "ends of files: 1")
        assert all(part in text and part in page for part in parts)


def test_many_documents_left_out_are_pointed_out(lab: Lab, tmp_path: Path) -> None:
    """Lines that come again and again, as in logs: most are like held-out ones."""
    corpus = "{type: text_files, paths: [mixed.txt], documents: lines}"
    frame = " ".join(f"word{n}" for n in range(40))
    file = written(tmp_path, corpus, b"")

    def write(framed: int) -> None:
        lines = [*(f"{frame} {n}" for n in range(framed)), *(f"{n} {n + 1}" for n in range(2000))]
        (tmp_path / "mixed.txt").write_text("\n".join(lines))

    write(600)
    answer = json.loads(lab("prepare", file, "--json")[1])
    assert answer["left_out"]["they share too much with held-out text"] > answer["documents"]["train"] / 9
    assert "of the training documents are left out" in lab("prepare", file)[1]
    # What it says would keep all of them does, and a hundredth less does not.
    keeping = answer["keeping_overlap"]
    assert 0.1 < keeping <= 1
    assert f"data.overlap: {keeping:g} would keep" in lab("prepare", file)[1]
    again = [lab("prepare", file, "--json", "--set", f"data.overlap={each}") for each in (keeping, keeping - 0.01)]
    kept, less = (json.loads(text)["left_out"] for _, text, _ in again)
    assert (kept, bool(less)) == ({}, True)
    write(100)
    answer = json.loads(lab("prepare", file, "--json")[1])
    assert answer["left_out"]["they share too much with held-out text"] > 0
    assert "of the training documents are left out" not in lab("prepare", file)[1]


def test_the_last_lines_are_held_out_by_order(lab: Lab, tmp_path: Path) -> None:
    corpus = "{type: text_files, paths: [mixed.txt], documents: lines}"
    file = written(tmp_path, corpus, b"")
    lines = [f"line {n} of the log" for n in range(400)]
    (tmp_path / "mixed.txt").write_text("\n".join(lines))
    options = ["--set", "data.split=by_order", "--set", "data.held_out=0.1", "--set", "data.overlap=1"]
    answer = json.loads(lab("prepare", file, "--json", *options)[1])
    assert answer["documents"] == {"train": 360, "validation": 20, "test": 20}
    by_key = json.loads(lab("prepare", file, "--json", *options[2:])[1])
    assert answer["store"] != by_key["store"]
    # A finished store that is named is refused under another split.
    named = ["--set", f"data.store={answer['store']}"]
    assert lab("prepare", file, "--json", *options, *named)[0] == 0
    code, _, said = lab("prepare", file, *options[2:], *named)
    assert (code, "another split" in said) == (2, True)
    grouped = ["--set", "corpus.group='(\\d) of'"]
    code, _, said = lab("prepare", file, *options, *grouped)
    assert (code, "data.split" in said, "group" in said) == (3, True, True)


ZIPPED = gzip.compress(os.urandom(5000).hex().encode())
HALF = ZIPPED[: len(ZIPPED) // 2]


@pytest.mark.parametrize(
    ("corpus", "name", "content", "said"),
    [
        ("{type: json_lines, paths: [text.jsonl]}", "text.jsonl", b'{"text": "a"}\n{"text"\n', "text.jsonl:2: "),
        ("{type: json_lines, paths: [text.jsonl]}", "text.jsonl", b'{"tekst": "a"}\n', "text.jsonl:1: "),
        ("{type: text_files, paths: [text.txt]}", "text.txt", b"\x89PNG\x00\xff\xfe", "text.txt:1: byte 0 "),
        ("{type: text_files, paths: [text.gz]}", "text.gz", HALF, "gz: "),
        ("{type: text_files, paths: [text.txt]}", "text.txt", b"", "no document has any text."),
        ("{type: text_files, paths: [nothing.txt]}", "text.txt", b"", "nothing.txt: no file matches."),
        ("{type: parquet, paths: [text.parquet]}", "text.parquet", b"PAR1 not really", "text.parquet: "),
        ("{type: mds, paths: [index.json]}", "index.json", b'{"shards": []}', "index.json: "),
        ("{type: fasta, paths: [a.fa]}", "a.fa", b">a\nAC\n>b\nMEFL\n", "a.fa:4: 'E' is not a letter of dna"),
        ("{type: fasta, paths: [a.fa]}", "a.fa", b">a\nAC\n>b\nMEFL\n", "set letters: protein."),
        ("{type: fasta, paths: [a.fa]}", "a.fa", b">a\n>b\nAC\n", "a.fa:1: the record 'a' has no letters. "),
        (
            "{type: ids, paths: [a.jsonl], vocab_size: 9}",
            "a.jsonl",
            b'{"ids": [8, 9]}',
            "a.jsonl:1: has the id 9, but ",
        ),
        (
            "{type: text_files, paths: [a.txt], remove: xyz}",
            "a.txt",
            b"the cat",
            "corpus.remove 'xyz' finds nothing in 1 ",
        ),
        (
            "{type: text_files, paths: [a.txt], group: xyz}",
            "a.txt",
            b"the cat",
            "corpus.group 'xyz' finds nothing in 1 ",
        ),
    ],
    ids=[
        "half a line",
        "another field",
        "binary",
        "half a gzip",
        "empty",
        "missing",
        "not parquet",
        "no shards",
        "protein",
        "its cure",
        "no letters",
        "id above",
        "removes nothing",
        "groups nothing",
    ],
)
def test_text_that_cannot_be_read(lab: Lab, tmp_path: Path, corpus: str, name: str, content: bytes, said: str) -> None:
    code, out, err = lab("prepare", written(tmp_path, corpus, content, name))
    lines = [line for line in err.splitlines() if not line.startswith("reading the corpus")]
    assert (code, out, len(lines)) == (3, "", 1)
    assert said in lines[0]
    assert not Path("runs").exists()


def test_a_full_disk(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "{type: json_lines, paths: [text.jsonl]}", jsonl(LINES))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("electra_lab.storage.files.os.fsync", full)
    code, _, err = lab("prepare", file)
    assert code == 3
    assert err.splitlines()[-1].endswith("runs/.store: the token store cannot be written (No space left on device).")
    assert not Path("runs").exists()


def test_a_terminal_sees_a_bar_and_a_log_sees_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    from electra_lab.presentation import console as module
    from electra_lab.presentation.console import Console

    said: list[str] = []
    clock = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(Console, "say", lambda _, text: said.append(text))
    with module.Phases(Console()) as progress:
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
