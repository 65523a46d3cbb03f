"""The token store: built once, also by several processes, found by its content, complete or absent."""

import hashlib
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from electra_lab.data.build import Recipe
from electra_lab.data.splits import SPLITS
from electra_lab.data.store import Store, key_of, open_store
from electra_lab.storage.files import lock
from electra_lab.tokenizers.wordpiece import SPECIAL, wordpiece
from registry import Document
from registry.errors import DataError
from tests.helpers import ROOT

DOCUMENTS = [f"the cat number {n} sat on the mat and saw {n + 1} dogs" for n in range(40)]
TRAINER = partial(wordpiece, vocab_size=200)


class Documents:
    """A corpus in memory that counts how often it is read."""

    def __init__(self, documents: Iterable[str]) -> None:
        self.documents = list(documents)
        self.readings = 0

    def __iter__(self) -> Iterator[str]:
        self.readings += 1
        yield from self.documents

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self.documents).encode()).hexdigest()


def words(documents: Iterable[str], numbers: range = range(100)) -> Tokenizer:
    """A tokenizer in which the special tokens and the words w0 .. w99 are one token each."""
    names = [*SPECIAL, *map("w{}".format, numbers)]
    vocabulary = {word: id for id, word in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def recipe(
    corpus: Any = None, trainer: Any = TRAINER, held_out: float = 0.4, description: Any = None, **others: Any
) -> Recipe:
    """Return a recipe that this process encodes; its identity has everything that determines the content."""
    corpus = corpus or Documents(DOCUMENTS)
    identity = {"corpus": corpus.fingerprint(), "held_out": held_out} | (description or {})
    options = {"overlap": 0.1, "tokenizer_characters": 1e6, "launcher": lambda _: None} | others
    return Recipe(corpus, corpus.fingerprint(), trainer, held_out=held_out, identity=identity, **options)


def opened(root: Path, *given: Any, said: list[str] | None = None, **options: Any) -> Store:
    return open_store(root, recipe(*given, **options), ([] if said is None else said).append)


def stream(store: Store, split: str) -> list[int]:
    tokens = getattr(store, split)
    ids: list[int] = tokens.read(np.arange(len(tokens))).tolist()
    return ids


def sides(store: Store) -> dict[str, list[tuple[str, ...]]]:
    """Return each split's documents as words, in order."""
    found: dict[str, list[tuple[str, ...]]] = {split: [] for split in SPLITS}
    for split, documents in found.items():
        document: list[str] = []
        for token in map(store.tokenizer.id_to_token, stream(store, split)):
            if token == "[SEP]":
                documents.append(tuple(document))
                document = []
            else:
                document.append(token)
        assert not document, "the last document is not closed"
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a store, except the note of verification, which contains times."""
    files = sorted(file for file in folder.iterdir() if not file.name.startswith(".verified-"))
    return {file.name: file.read_bytes() for file in files}


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def test_built_once_and_found_again(tmp_path: Path) -> None:
    corpus, said = Documents(DOCUMENTS), list[str]()
    first = opened(tmp_path, corpus, said=said)
    second = opened(tmp_path, corpus, said=said)
    assert said == ["reading the corpus (once; the result is kept)"]
    assert corpus.readings == 1
    assert (first.key, first.folder, sides(first)) == (second.key, second.folder, sides(second))
    assert sum(first.documents.values()) == len(DOCUMENTS)
    assert left(tmp_path) == [first.key]
    ends = ("bin", "lengths.npy", "words.npy")
    shards = [f"{split}-00000.{end}" for split in SPLITS for end in ends]
    assert sorted(contents(first.folder)) == sorted(["counts.npy", "manifest.json", "tokenizer.json", *shards])
    assert first.folder.stat().st_mode & 0o777 == 0o755, "a store may be shared"


@pytest.mark.parametrize(("size", "kind"), [(65_536, "uint16"), (65_537, "uint32")])
def test_streams_hold_every_id_of_the_vocabulary(tmp_path: Path, size: int, kind: str) -> None:
    last = size - 1
    corpus = Documents(f"w{5 + n} w{last - n} w{last}" for n in range(60))
    store = opened(tmp_path, corpus, partial(words, numbers=range(5, size)))  # words are named after their ids
    assert store.manifest.dtype == kind
    assert store.tokenizer.get_vocab_size() == size
    assert set(sides(store)["train"]) <= {tuple(document.split()) for document in corpus.documents}
    found = stream(store, "train")
    assert max(found) == last
    assert np.array_equal(store.counts, np.bincount(found, minlength=size))
    assert store.tokens["train"] == len(found) == len(store.train)


def test_documents_come_back_in_order(tmp_path: Path) -> None:
    corpus = Documents(f"w{n} w{n + 1}" for n in range(60))
    given = [tuple(document.split()) for document in corpus.documents]
    store = opened(tmp_path, corpus, words)
    found = sides(store)
    assert sorted(itertools.chain.from_iterable(found.values())) == sorted(given)
    for split, documents in found.items():
        assert documents == [document for document in given if document in documents]
        assert len(documents) == store.documents[split]
        tokens = getattr(store, split)
        assert tokens.lengths.tolist() == [len(document) + 1 for document in documents]
        assert tokens.words.tolist() == [len(document) for document in documents]


def test_what_decides_the_content_decides_the_key(tmp_path: Path) -> None:
    corpora = [Documents(DOCUMENTS), Documents([*DOCUMENTS, "one more"]), Documents(reversed(DOCUMENTS))]
    keys = [key_of(recipe(corpus).identity) for corpus in corpora]
    keys += [key_of(recipe(held_out=0.5).identity), key_of(recipe(description={"tokenizer": 300}).identity)]
    assert len(set(keys)) == 5
    assert opened(tmp_path).key == keys[0]


some_documents = st.lists(st.integers(0, 99).map(lambda n: f"w{n}"), min_size=1, max_size=30)
# Each split always gets some of w0 .. w99.
ANCHORS = [f"w{n}" for n in range(20)]


@settings(max_examples=15, deadline=None)
@given(documents=some_documents, added=some_documents)
def test_the_split_goes_by_the_text(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], added: list[str]
) -> None:
    """No document is on both sides, duplicates stay together, and no document moves when others are added."""
    root = tmp_path_factory.mktemp("split")
    few, many = ANCHORS + documents, added + documents + ANCHORS
    before, after = (sides(opened(root, Documents(texts), words)) for texts in (few, many))
    for found, texts in ((before, few), (after, many)):
        train, validation, test = (set(found[split]) for split in SPLITS)
        assert not train & validation | train & test | validation & test
        assert sorted(itertools.chain.from_iterable(found.values())) == sorted((word,) for word in texts)
    for split in before:
        assert set(before[split]) <= set(after[split])


OVERLAPPING = [Document("a b", split="train"), Document("a b", split="validation"), Document("c", split="test")]


@pytest.mark.parametrize(
    ("documents", "held_out", "message"),
    [
        ([], 0.3, "no document has any text"),
        (DOCUMENTS[:3], 0.999999, "with 0.999999, the split train is empty: none of 3 documents fell into it"),
        (DOCUMENTS[:3], 1e-9, "the split validation is empty: none of 3 documents"),
        ([" " * n for n in range(1, 40)], 0.4, "no document has any text"),
        (["\u200b" * n for n in range(1, 60)], 0.4, "the split validation has no tokens"),
        ([Document("a b", split="train"), Document("c", split="test")], 0.4, "own splits, but no .* for validation"),
        (OVERLAPPING, 0.4, r"the training split has no tokens.*\(data\.overlap 0\.1\)"),
    ],
)
def test_an_unusable_corpus_is_a_clear_error(
    tmp_path: Path, documents: list[str], held_out: float, message: str
) -> None:
    """And no file is left, not even the folders created for it."""
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "new" / "store", Documents(documents), held_out=held_out)
    assert left(tmp_path) == []
    opened(tmp_path / "new" / "store")
    kept = left(tmp_path / "new" / "store")
    with pytest.raises(DataError):
        opened(tmp_path / "new" / "store", Documents(documents), held_out=held_out)
    assert left(tmp_path / "new" / "store") == kept


@pytest.mark.parametrize(
    ("keys", "held_out", "share"),
    [(["mir"] * 60, 0.01, None), (["mir", "let"] * 30, 0.1, None), (list("abcdef") * 10, 0.01, 0.5),
     ([None] * 60, 0.001, 0.3), (list("def") * 20, 0.5, None), (["one"] * 50 + [None] * 10, 0.001, 0.5),
     (list("acef") * 15, 0.5, None), (list("abcd") * 15, 0.9, 0.5)],
)  # fmt: skip
def test_few_keys_are_said_to_leave_a_split_empty(tmp_path: Path, keys, held_out: float, share: float | None) -> None:
    """As of FASTA records whose headers begin with one word: only a share that helps is advised."""
    with pytest.raises(DataError) as refused:
        opened(tmp_path, Documents([Document(f"text {n}", key) for n, key in enumerate(keys)]), held_out=held_out)
    said = str(refused.value)
    assert "60 documents" in said
    number = len({*keys} - {None}) + keys.count(None)
    assert (f" {number} key" in said and f"{keys[0]!r}" in said) == (number < 60)
    assert re.findall(r"Set it to ([\d.]+)\.", said) == ([] if share is None else [f"{share:g}"])


def test_a_corpus_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    class Broken(Documents):
        def __iter__(self) -> Iterator[str]:
            yield from self.documents
            raise DataError("byte 99 is not UTF-8.")

    with pytest.raises(DataError, match="byte 99"):
        opened(tmp_path / "store", Broken(DOCUMENTS))
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train-00000.bin", lambda path: os.truncate(path, path.stat().st_size - 2)),
        ("train-00000.bin", lambda path: flip(path)),
        ("test-00000.lengths.npy", lambda path: flip(path)),
        ("validation-00000.bin", lambda path: path.unlink()),
        ("manifest.json", lambda path: path.write_text('{"bytes": ')),
        ("manifest.json", lambda path: path.write_text("{}")),
        ("manifest.json", lambda path: path.write_text(path.read_text().replace('"overlap": 0', '"overlap": 1', 1))),
        ("manifest.json", lambda path: path.unlink()),
        ("tokenizer.json", lambda path: path.write_text(" " * path.stat().st_size)),
    ],
)
def test_a_damaged_store_is_named_with_the_cure(tmp_path: Path, file: str, damage: Callable[[Path], Any]) -> None:
    store = opened(tmp_path)
    before = sides(store)
    damage(store.folder / file)
    corpus, said = Documents(DOCUMENTS), []
    with pytest.raises(DataError, match=r"damaged.*\. Rebuild it: electra-lab prepare FILE --rebuild") as e:
        opened(tmp_path, corpus, said=said)
    assert str(store.folder) in str(e.value)
    assert file in str(e.value) or file == "tokenizer.json"
    assert (corpus.readings, said) == (0, [])
    assert sides(open_store(tmp_path, recipe(corpus), said.append, rebuild=True)) == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_leftovers_of_a_killed_build_are_cleared(tmp_path: Path) -> None:
    key = opened(tmp_path / "elsewhere").key
    root, other = tmp_path / "store", ".0123456789abcdef.part"  # of another store, which may be under construction
    (root / f".{key}.part" / "spool").mkdir(parents=True)
    (root / f".{key}.part" / "spool" / "train-00000.txt").write_text("half a docu")
    (root / f".{key}.lock").touch()
    (root / other).mkdir()
    assert opened(root).key == key
    assert left(root) == [other, key]
    # And the lock of a process that was killed right after the store was complete, unless another process holds it.
    file = root / f".{key}.lock"
    with lock(file):
        opened(root)
        assert file.exists()
    file.touch()
    opened(root)
    assert left(root) == [other, key]


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(DataError, match=f"{place}.* cannot be created"):
            opened(place)


@pytest.mark.parametrize("refused", ["storage.files.os.fsync", "data.store.lock", "data.store.build"])
def test_a_failing_disk_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Also if not even the empty folder can be removed; then it stays."""
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(f"electra_lab.{refused}", full)
    if refused != "storage.files.os.fsync":
        monkeypatch.setattr(Path, "rmdir", full)
    with pytest.raises(DataError, match=r"store: the token store cannot be written \(No space left on device\)"):
        opened(tmp_path / "store")
    assert refused != "storage.files.os.fsync" or left(tmp_path) == []


@pytest.mark.parametrize("seed", range(4))
def test_the_overlap_that_keeps_every_document(tmp_path: Path, seed: int) -> None:
    """Left-out test documents contain runs that training documents may share."""
    rng = np.random.default_rng(seed)
    phrases = [" ".join(map("w{}".format, row)) for row in rng.integers(0, 100, (60, 20))]
    pairs = rng.integers(0, 60, (80, 2))
    corpus = Documents(f"{phrases[left]} w{number} {phrases[right]}" for number, (left, right) in enumerate(pairs))

    def left_out(overlap: float) -> tuple[list[int], float]:
        """Return the numbers of documents left out of train, validation and test, and the sufficient overlap."""
        manifest = opened(tmp_path, corpus, words, overlap=overlap, description={"overlap": overlap}).manifest
        numbers = dict.fromkeys(SPLITS, 0)
        for split, shards in manifest.shards.items():
            numbers[split] += sum(shard.overlapping for shard in shards.values())
        return [*numbers.values()], max(shard.sufficient or 0.0 for shard in manifest.all_shards)

    (train, _, test), sufficient = left_out(0.3)
    assert min(train, test) > 0
    assert left_out(sufficient) == ([0, 0, 0], sufficient)
    assert sum(left_out(sufficient - 0.01)[0]) > 0


def test_the_lock_outlives_a_holder_that_fails(tmp_path: Path) -> None:
    """One build fails while a second waits for it; a third that comes later must wait for the second."""
    (tmp_path / "kept").touch()  # so that the failing build does not remove the folder
    reading = {name: threading.Event() for name in "abc"}
    go_on = {name: threading.Event() for name in "abc"}
    waits = threading.Event()

    class Stepwise(Documents):
        def __init__(self, name: str) -> None:
            super().__init__(DOCUMENTS)
            self.name = name

        def __iter__(self) -> Iterator[str]:
            reading[self.name].set()
            assert go_on[self.name].wait(20)
            if self.name == "a":
                raise DataError("fails")
            yield from self.documents

    def build(name: str) -> str:
        return open_store(tmp_path, recipe(Stepwise(name)), partial(say, name)).key

    def say(name: str, text: str) -> None:
        if (name, text) == ("b", "another process is building this token store; waiting for it"):
            waits.set()

    with ThreadPoolExecutor(3) as pool:
        a = pool.submit(build, "a")
        assert reading["a"].wait(20)
        b = pool.submit(build, "b")
        assert waits.wait(20)  # b has opened the lock file and waits for it
        go_on["a"].set()
        assert isinstance(a.exception(20), DataError)
        assert reading["b"].wait(20)
        c = pool.submit(build, "c")
        assert not reading["c"].wait(0.3), "two build at once"
        go_on["b"].set()
        go_on["c"].set()
        assert b.result(20) == c.result(20)
    assert not reading["c"].is_set()
    assert left(tmp_path) == sorted([b.result(), "kept"])


SLOW = """
import sys, time
from pathlib import Path
from tests.electra_lab.data.test_store import DOCUMENTS, Documents, opened

class Slow(Documents):
    def __iter__(self):
        Path(sys.argv[1]).touch()
        time.sleep(0.5)
        yield from self.documents

Path("ready-" + sys.argv[1]).touch()
while len(list(Path().glob("ready-*"))) < 2:
    time.sleep(0.01)
print(opened(Path("store"), Slow(DOCUMENTS)).key)
"""


def test_two_processes_build_one_store(tmp_path: Path) -> None:
    """With the same bytes as this process builds, regardless of their hash seeds."""
    processes = []
    for name, seed in (("a", "1"), ("b", "2")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SLOW, name]
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE))
    keys = {process.communicate(timeout=60)[0].decode().strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(keys) == 1
    assert left(tmp_path / "store") == list(keys)
    assert len([name for name in "ab" if (tmp_path / name).exists()]) == 1, "the corpus was read twice"
    here = opened(tmp_path / "here")
    assert contents(tmp_path / "store" / here.key) == contents(here.folder)
