"""Building a store: in pieces, by other processes, despite kills, and without overlapping documents."""

import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from electra_lab.data import build as module
from electra_lab.data import raw_documents
from electra_lab.data.build import Unfinished
from electra_lab.data.rows import Stream
from electra_lab.data.shards import encode_shard
from electra_lab.data.store import _allow_open_files, load_store, open_store
from electra_lab.launchers.local import Local
from registry import Command, Document, Outcome, tokenizers
from registry.errors import DataError
from tests.electra_lab.data.test_store import Documents, contents, flip, left, recipe, sides, stream, words
from tests.scorecard.lab import Lab, Running


def numbered(numbers: Iterable[int]) -> str:
    return " ".join(f"w{number % 100}" for number in numbers)


TEXT = [numbered(n * 7 + np.arange(30) ** 2) for n in range(400)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_documents, "LEAST", 4000)


@pytest.mark.usefixtures("small_pieces")
def test_shards_do_not_change_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do other processes, started by the default launcher of `prepare`, change a byte."""
    many = open_store(tmp_path / "many", recipe(Documents(TEXT), words), [].append)
    launcher = Local(workers=2, threads=1, gpus=0)
    there = open_store(tmp_path / "there", recipe(Documents(TEXT), words, launcher=lambda _: launcher), [].append)
    assert contents(many.folder) == contents(there.folder)
    monkeypatch.setattr(raw_documents, "LEAST", 1 << 24)
    single = open_store(tmp_path / "one", recipe(Documents(TEXT), words), [].append)
    assert len(many.manifest.shards["train"]) > 4
    assert len(single.manifest.shards["train"]) == 1
    assert stream(many, "train") == stream(single, "train")
    assert many.train.lengths.tolist() == single.train.lengths.tolist()
    assert np.array_equal(many.counts, single.counts)
    assert many.overlap == single.overlap


def test_reading_across_shards(tmp_path: Path) -> None:
    pieces = [np.arange(0, 5, dtype=np.uint16), np.arange(5, 5, dtype=np.uint16), np.arange(5, 12, dtype=np.uint16)]
    for name, length in (("a", 5), ("b", 7)):
        np.save(tmp_path / f"{name}.npy", np.array([length], np.uint32))
    tokens = Stream(pieces, [tmp_path / "a.npy", tmp_path / "b.npy"])
    places = np.array([[0, 4, 5], [11, 6, 4]])
    assert tokens.read(places).tolist() == places.tolist()
    assert tokens.read(places).dtype == np.int64
    assert (len(tokens), tokens.lengths.tolist()) == (12, [5, 7])


def losing(commands: Mapping[str, Command], folder: Path) -> Iterator[tuple[str, Outcome]]:
    """A launcher whose first command dies."""
    first, *others = commands
    for name in others:
        encode_shard(folder, name)
        yield name, Outcome(0)
    yield first, Outcome(-9, "was ended by signal 9 (SIGKILL).")


@pytest.mark.usefixtures("small_pieces")
def test_a_lost_shard_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    corpus, encoded, said = Documents(TEXT), list[int](), list[str]()
    with pytest.raises(Unfinished, match=r"^train-00000: .*SIGKILL"):
        open_store(tmp_path, recipe(corpus, words, launcher=lambda _: losing), [].append)
    store = open_store(tmp_path, recipe(corpus, words, launcher=encoded.append), said.append)
    assert said[0] == "continuing a build that was interrupted"
    assert (encoded, corpus.readings) == ([1], 1)
    assert contents(store.folder) == contents(open_store(tmp_path / "b", recipe(corpus, words), [].append).folder)
    assert left(tmp_path) == sorted([store.key, "b"])


@pytest.mark.usefixtures("small_pieces")
def test_a_build_that_another_release_began_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Documents(TEXT)
    now = module.UNFINISHED
    monkeypatch.setattr(module, "UNFINISHED", now - 1)
    with pytest.raises(Unfinished):
        open_store(tmp_path, recipe(corpus, words, launcher=lambda _: losing), [].append)
    monkeypatch.setattr(module, "UNFINISHED", now)
    open_store(tmp_path, recipe(corpus, words), [].append)
    assert corpus.readings == 2


def test_what_a_launcher_leaves_behind_is_removed(tmp_path: Path) -> None:
    def logging(commands: Mapping[str, Command], folder: Path) -> Iterator[tuple[str, Outcome]]:
        """A launcher that keeps its logs in the folder, as Slurm does."""
        (folder / "slurm" / "logs").mkdir(parents=True)
        for name in commands:
            encode_shard(folder, name)
            yield name, Outcome(0)

    store = open_store(tmp_path, recipe(Documents(TEXT), words, launcher=lambda _: logging), [].append)
    assert {*contents(store.folder)} == {"manifest.json", *store.manifest.all_bytes}


def test_a_corpus_that_changed_before_it_was_read_is_refused_and_a_rebuild_keeps_what_is_there(tmp_path: Path) -> None:
    """Otherwise this corpus's fingerprint would permanently lead to other text."""
    corpus = Documents(TEXT)
    made = recipe(corpus, words)
    corpus.documents.append("w1 w2 w3")
    with pytest.raises(DataError, match="the corpus changed while it was read"):
        open_store(tmp_path, made, [].append)
    assert left(tmp_path) == []
    before = open_store(tmp_path, recipe(Documents(TEXT), words), [].append)
    expected = contents(before.folder)
    with pytest.raises(DataError):
        open_store(tmp_path, made, [].append, rebuild=True)
    assert contents(before.folder) == expected
    open_store(tmp_path, recipe(Documents(TEXT), words), [].append, rebuild=True)
    assert contents(before.folder) == expected
    assert left(tmp_path) == [before.key]


@pytest.mark.parametrize("name", ["bpe", "bytes", "characters", "unigram", "wordpiece"])
def test_a_special_token_that_is_written_is_text_for_every_tokenizer(tmp_path: Path, name: str) -> None:
    """[MASK] in a document becomes several pieces of text, although some models have it as a piece."""
    options = {} if name == "bytes" else {"vocab_size": 400}
    trainer = partial(tokenizers.get(name).component, **options)
    special = ("[MASK]", "[SEP]", "[PAD]", "[UNK]", "[CLS]")
    text = [f"{' '.join(map(str, range(n, n + 20)))} {special[n % 5]} glued{special[n % 4]}on" for n in range(120)]
    store = open_store(tmp_path, recipe(Documents(text), trainer, overlap=1.0), [].append)
    ids = stream(store, "train")
    found = {role: ids.count(id) for role, id in store.special.items()}
    assert found == {"pad": 0, "cls": 0, "sep": store.documents["train"], "mask": 0}
    assert store.tokenizer.token_to_id("[UNK]") not in ids


def to_be_killed() -> None:
    """Build a store with worker processes; called in a separate process."""
    raw_documents.LEAST = 4000
    launcher = Local(workers=2, threads=1, gpus=0)
    Path("started").touch()
    print(open_store(Path("store"), recipe(Documents(TEXT), launcher=lambda _: launcher), lambda _: None).key)


@pytest.mark.skipif("ELECTRA_LAB_SOAK" not in os.environ, reason="takes minutes: make soak")
def test_kills_change_nothing(forks: Lab, tmp_path: Path) -> None:
    """SIGKILL at moments spread over the build; afterwards the bytes are the same as without."""
    kills, killed = 20, 0

    def start() -> Running:
        (tmp_path / "started").unlink(missing_ok=True)
        process = forks.start(f"{__name__}:{to_be_killed.__name__}", cwd=tmp_path)
        while not (tmp_path / "started").exists() and process.poll() is None:
            time.sleep(0.01)
        return process

    process, began = start(), time.monotonic()
    key = process.wait(120).out.strip()
    whole, expected = time.monotonic() - began, contents(tmp_path / "store" / key)
    (tmp_path / "store").rename(tmp_path / "first")
    for kill in range(kills):
        process = start()
        time.sleep(whole * (kill + 0.5) / kills * 0.9)
        process.kill()
        killed += process.wait().code == -signal.SIGKILL
    assert killed > kills / 3
    assert start().wait(120).out.strip() == key
    assert contents(tmp_path / "store" / key) == expected
    assert left(tmp_path / "store") == [key]


class Killed(BaseException): ...


@pytest.mark.usefixtures("small_pieces")
def test_a_killed_build_continues_with_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill between any two of its files."""
    expected = open_store(tmp_path / "whole", recipe(Documents(TEXT), words), [].append)
    names, real = list[str](), module.write_text

    def write(number: int, path: Path, text: str) -> None:
        if len(names) == number:
            raise Killed
        names.append(path.name)
        real(path, text)

    for number in range(8):
        names.clear()
        monkeypatch.setattr(module, "write_text", partial(write, number))
        with suppress(Killed):
            open_store(tmp_path / "killed", recipe(Documents(TEXT), words), [].append)
            break
    assert names[-1:] in ([], ["manifest.json"])
    assert contents(load_store(tmp_path / "killed" / expected.key).folder) == contents(expected.folder)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: -len(file.read_bytes()) // 4]),
    "flipped": flip,
    "removed": Path.unlink,
}


@pytest.mark.parametrize("tidied", [False, True])
@pytest.mark.parametrize("damages", [[*DAMAGES], *(pytest.param([name], marks=pytest.mark.slow) for name in DAMAGES)])
def test_a_damaged_leftover_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damages: list[str], tidied: bool
) -> None:
    """Any file of a build that was killed while it was encoding or cleaning up.

    The quick test damages each file in one way, so that files of a kind get different ones; the slow tests try all.
    """
    monkeypatch.setattr(raw_documents, "LEAST", 12_000)  # two pieces
    corpus, whole = Documents(TEXT), tmp_path / "whole"
    expected = contents(open_store(whole, recipe(corpus, words), [].append).folder)
    killed, part = tmp_path / "killed", f".{left(whole)[0]}.part"
    with monkeypatch.context() as patch:
        if tidied:
            patch.setattr(module, "_tidy", Mock(side_effect=Unfinished("the process was killed.")))
        with pytest.raises(Unfinished):
            open_store(killed, recipe(corpus, words, launcher=lambda _: None if tidied else losing), [].append)
    files = [file.relative_to(killed / part) for file in sorted((killed / part).rglob("*")) if file.is_file()]
    assert {Path("tokenizer.json"), Path("train-00001.seen.npy"), Path("spool/train-00001.txt")} < {*files}
    assert (Path("manifest.json") in files) is tidied
    for number, (file, damage) in enumerate(zip(files, cycle(damages), strict=False)):
        damaged = tmp_path / f"damaged {number}"
        shutil.copytree(killed, damaged)
        DAMAGES[damage](damaged / part / file)
        store = open_store(damaged, recipe(corpus, words), [].append)
        assert contents(store.folder) == expected, (file, damage)
        assert left(damaged) == [store.key], file


def test_tokens_are_those_of_the_tokenizers_library(tmp_path: Path) -> None:
    korean = "\u1112\u1161\u11ab\u1100\u116e\u11a8"
    odd = ["\u0437\u0430\u0301\u043c\u043e\u043a", "cafe\u0301 e\u0302\u0301", korean, "\ufb01 \u2460"]
    text = [f"{odd[n % 4]} number {n} {odd[n % 3]}" for n in range(120)]
    for name in ("wordpiece", "bpe", "unigram"):
        documents = set[tuple[int, ...]]()
        trainer = partial(tokenizers.get(name).component, vocab_size=300)
        store = open_store(tmp_path / name, recipe(Documents(text), trainer, overlap=1.0), [].append)
        for tokens in (store.train, store.validation, store.test):
            ids = tokens.read(np.arange(len(tokens)))
            ends = tokens.lengths.cumsum()
            documents |= {tuple(part[:-1].tolist()) for part in np.split(ids, ends[:-1])}
        assert documents == {tuple(store.tokenizer.encode(t, add_special_tokens=False).ids) for t in text}


def test_training_text_that_repeats_held_out_text_is_left_out(tmp_path: Path) -> None:
    own = lambda text, split: Document(text, split=split)  # noqa: E731
    held, seen, fresh = (numbered(range(0, 60 * step, step)) for step in (3, 7, 9))
    half = " ".join(held.split()[:30] + fresh.split()[:30])
    few = " ".join(held.split()[:14] + fresh.split())
    documents = [own(held, "validation"), own(held, "test"), own(seen, "test"), own(seen, "train"),
                 own(held, "train"), own(half, "train"), own(few, "train"), own(fresh, "train")]  # fmt: skip
    store = open_store(tmp_path, recipe(Documents(documents), words, overlap=0.1), [].append)
    found = {split: list(map(" ".join, rows)) for split, rows in sides(store).items()}
    assert found == {"validation": [held], "test": [seen], "train": [few, fresh]}
    assert [s.overlapping for shards in store.manifest.shards.values() for s in shards.values()] == [3, 0, 1]
    characters = {split: s.characters for split, shards in store.manifest.shards.items() for s in shards.values()}
    assert characters == {split: sum(map(len, texts)) for split, texts in found.items()}
    # Two of the 48 + 48 runs: the first 14 words of `held`.
    assert store.overlap == pytest.approx(2 / 96)


@pytest.mark.usefixtures("small_pieces")
def test_more_shards_than_open_files_are_allowed(tmp_path: Path) -> None:
    """The default limit of most systems is raised, as each shard stays open."""
    store = open_store(tmp_path, recipe(Documents(TEXT), words), [].append)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 5  # other tests of this process may have many open
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        _allow_open_files(5000)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(5256, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        assert len(load_store(store.folder).train) == len(store.train)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_checksums_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared again after a change and in a copy, also on a read-only disk."""
    store = open_store(tmp_path / "a", recipe(Documents(TEXT), words), [].append)
    compared = Mock(wraps=module.sha256)
    monkeypatch.setattr(module, "sha256", compared)
    load_store(store.folder)
    compared.assert_not_called()
    copy = Path(shutil.copytree(store.folder, tmp_path / "elsewhere" / "any name"))
    expected = sides(store)
    os.utime(store.folder / "train-00000.bin")
    monkeypatch.setattr("electra_lab.data.store.write_whole", Mock(side_effect=OSError(30, "Read-only file system")))
    for folder in (copy, store.folder):
        compared.reset_mock()
        assert sides(load_store(folder)) == expected
        assert load_store(folder).key == store.key
        assert compared.call_count == 2 * len(store.manifest.all_bytes)
