"""Building a store: in pieces, by other processes, through kills, and without what overlaps."""

import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from electra_lab.data import build as module
from electra_lab.data import raw_documents
from electra_lab.data.build import Unfinished
from electra_lab.data.splits import SPLITS
from electra_lab.data.store import Stream, _allow_open_files, load_store, open_store
from electra_lab.launchers.local import Local
from registry import Document, Outcome, Work, tokenizers
from registry.errors import DataError
from tests.electra_lab.data.test_store import Documents, contents, flip, left, recipe, sides, stream, words
from tests.scorecard.lab import Lab, Running

TEXT = [" ".join(f"w{(n * 7 + i * i) % 100}" for i in range(30)) for n in range(400)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_documents, "LEAST", 4000)


@pytest.mark.usefixtures("small_pieces")
def test_shards_do_not_change_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = open_store(tmp_path / "many", recipe(Documents(TEXT), words), [].append)
    assert len(many.manifest.shards["train"]) > 4
    monkeypatch.setattr(raw_documents, "LEAST", 1 << 24)
    one = open_store(tmp_path / "one", recipe(Documents(TEXT), words), [].append)
    assert len(one.manifest.shards["train"]) == 1
    assert stream(many, "train") == stream(one, "train")
    assert many.train.lengths.tolist() == one.train.lengths.tolist()
    assert np.array_equal(many.counts, one.counts)
    assert many.overlap == one.overlap


@pytest.mark.usefixtures("small_pieces")
def test_other_processes_write_the_same_bytes(tmp_path: Path) -> None:
    """Through the launcher that `prepare` uses by default."""
    here = open_store(tmp_path / "here", recipe(Documents(TEXT), words), [].append)
    launcher = Local(workers=2, threads=1, gpus=0)
    there = open_store(tmp_path / "there", recipe(Documents(TEXT), words, launcher=lambda _: launcher), [].append)
    assert contents(here.folder) == contents(there.folder)


def test_reading_across_shards(tmp_path: Path) -> None:
    pieces = [np.arange(0, 5, dtype=np.uint16), np.arange(5, 5, dtype=np.uint16), np.arange(5, 12, dtype=np.uint16)]
    for name, length in (("a", 5), ("b", 7)):
        np.save(tmp_path / f"{name}.npy", np.array([length], np.uint32))
    tokens = Stream(pieces, [tmp_path / "a.npy", tmp_path / "b.npy"])
    places = np.array([[0, 4, 5], [11, 6, 4]])
    assert tokens.read(places).tolist() == places.tolist()
    assert tokens.read(places).dtype == np.int64
    assert (len(tokens), tokens.lengths.tolist()) == (12, [5, 7])


class Failing:
    """A launcher whose first process dies."""

    here = True

    def check(self) -> None: ...

    def __call__(self, work: Work, folder: str, ids: Sequence[str], /) -> Iterator[tuple[str, Outcome]]:
        for piece in ids[1:]:
            yield piece, work(folder, piece)
        yield ids[0], Outcome("lost", "the worker process died by signal 9 (SIGKILL).")

    @staticmethod
    def fail(_: Path) -> None:
        raise Unfinished("the process was killed.")


@pytest.mark.usefixtures("small_pieces")
def test_a_lost_shard_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    corpus = Documents(TEXT)
    with pytest.raises(Unfinished) as lost:
        open_store(tmp_path, recipe(corpus, words, launcher=lambda _: Failing()), [].append)
    assert str(lost.value).startswith("train-00000: the worker process died by signal 9 (SIGKILL). ")
    encoded: list[int] = []

    def count(number: int) -> None:
        encoded.append(number)

    said: list[str] = []
    store = open_store(tmp_path, recipe(corpus, words, launcher=count), said.append)
    assert said[0] == "continuing a build that was interrupted"
    assert encoded == [1]
    assert corpus.readings == 1
    assert contents(store.folder) == contents(open_store(tmp_path / "b", recipe(corpus, words), [].append).folder)
    assert left(tmp_path) == sorted([store.key, "b"])


@pytest.mark.usefixtures("small_pieces")
def test_a_build_that_another_release_began_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Documents(TEXT)
    now = module.UNFINISHED
    monkeypatch.setattr(module, "UNFINISHED", now - 1)
    with pytest.raises(Unfinished):
        open_store(tmp_path, recipe(corpus, words, launcher=lambda _: Failing()), [].append)
    monkeypatch.setattr(module, "UNFINISHED", now)
    open_store(tmp_path, recipe(corpus, words), [].append)
    assert corpus.readings == 2


class Logging:
    """A launcher that keeps its logs in the folder, as Slurm does."""

    here = True

    def check(self) -> None: ...

    def __call__(self, work: Work, folder: str, ids: Sequence[str], /) -> Iterator[tuple[str, Outcome]]:
        (Path(folder) / "slurm" / "logs").mkdir(parents=True)
        for piece in ids:
            yield piece, work(folder, piece)


def test_what_a_launcher_leaves_behind_is_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a", recipe(Documents(TEXT), words, launcher=lambda _: Logging()), [].append)
    expected = open_store(tmp_path / "b", recipe(Documents(TEXT), words), [].append)
    assert contents(store.folder) == contents(expected.folder)


def test_a_corpus_that_changed_before_it_was_read_is_refused_and_a_rebuild_keeps_what_is_there(tmp_path: Path) -> None:
    """Otherwise other text would be found by this corpus's fingerprint for ever."""
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
    again = open_store(tmp_path, recipe(Documents(TEXT), words), [].append, rebuild=True)
    assert contents(again.folder) == expected
    assert left(tmp_path) == [before.key]


def test_a_manifest_that_was_edited_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, recipe(Documents(TEXT), words), [].append)
    manifest = store.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"overlap": 0', '"overlap": 1', 1))
    with pytest.raises(DataError, match=r"the checksum of manifest\.json is wrong"):
        load_store(store.folder)


@pytest.mark.parametrize("name", ["bpe", "bytes", "characters", "unigram", "wordpiece"])
def test_a_special_token_that_is_written_is_text_for_every_tokenizer(tmp_path: Path, name: str) -> None:
    """[MASK] in a document is several pieces of text, although some models have it among their pieces."""
    options = {} if name == "bytes" else {"vocab_size": 400}
    trainer = partial(tokenizers.get(name).component, **options)
    special = ("[MASK]", "[SEP]", "[PAD]", "[UNK]", "[CLS]")
    text = [f"{' '.join(map(str, range(n, n + 20)))} {special[n % 5]} glued{special[n % 4]}on" for n in range(120)]
    store = open_store(tmp_path, recipe(Documents(text), trainer, overlap=1.0), [].append)
    ids = np.array(stream(store, "train"))
    found = {role: int((ids == id).sum()) for role, id in store.special.items()}
    assert found == {"pad": 0, "cls": 0, "sep": store.documents["train"], "mask": 0}
    assert store.tokenizer.token_to_id("[UNK]") not in ids


def to_be_killed() -> None:
    """Build a store by workers of its own; in a process of its own."""
    raw_documents.LEAST = 4000
    launcher = Local(workers=2, threads=1, gpus=0)
    Path("started").touch()
    print(open_store(Path("store"), recipe(Documents(TEXT), launcher=lambda _: launcher), lambda _: None).key)


@pytest.mark.skipif("ELECTRA_LAB_SOAK" not in os.environ, reason="takes minutes: make soak")
def test_kills_change_nothing(forks: Lab, tmp_path: Path) -> None:
    """SIGKILL at moments that are spread over the build; then the same bytes as without. Between any two files, see
    below."""
    kills = 20

    def start() -> Running:
        (tmp_path / "started").unlink(missing_ok=True)
        process = forks.start(f"{__name__}:{to_be_killed.__name__}", cwd=tmp_path)
        while not (tmp_path / "started").exists() and process.poll() is None:
            time.sleep(0.01)
        return process

    process = start()
    began = time.monotonic()
    key = process.wait(120).out.strip()
    whole, expected = time.monotonic() - began, contents(tmp_path / "store" / key)
    (tmp_path / "store").rename(tmp_path / "first")
    killed = 0
    for kill in range(kills):
        process = start()
        time.sleep(whole * (kill + 0.5) / kills * 0.9)
        process.kill()
        killed += process.wait().code == -signal.SIGKILL
    assert killed > kills / 3
    assert start().wait(120).out.strip() == key
    assert contents(tmp_path / "store" / key) == expected
    assert left(tmp_path / "store") == [key]


@pytest.mark.usefixtures("small_pieces")
def test_a_killed_build_continues_with_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two of its files, whichever these are."""
    expected = open_store(tmp_path / "whole", recipe(Documents(TEXT), words), [].append)
    names: list[str] = []
    real = module.write_text

    class Killed(BaseException): ...

    def until(number: int) -> None:
        def write(path: Path, text: str) -> None:
            if len(names) == number:
                raise Killed
            names.append(path.name)
            real(path, text)

        monkeypatch.setattr(module, "write_text", write)

    for number in range(8):
        names.clear()
        until(number)
        try:
            open_store(tmp_path / "killed", recipe(Documents(TEXT), words), [].append)
        except Killed:
            continue
        break
    assert names[-1:] in ([], ["manifest.json"])
    assert contents(load_store(tmp_path / "killed" / expected.key).folder) == contents(expected.folder)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: -len(file.read_bytes()) // 4]),
    "flipped": flip,
    "removed": Path.unlink,
}
IN_TURN = [*DAMAGES]


@pytest.fixture
def two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_documents, "LEAST", 12_000)


@pytest.mark.usefixtures("two_pieces")
@pytest.mark.parametrize("tidied", [False, True])
@pytest.mark.parametrize("damages", [IN_TURN, *(pytest.param([name], marks=pytest.mark.slow) for name in IN_TURN)])
def test_a_damaged_leftover_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damages: list[str], tidied: bool
) -> None:
    """Any file of a build that was killed while it encoded, or while it cleaned up behind itself.

    The quick test damages each file in one way, and files of a kind in several; the slow ones every file in every way.
    """
    corpus, whole = Documents(TEXT), tmp_path / "whole"
    expected = contents(open_store(whole, recipe(corpus, words), [].append).folder)
    killed, part = tmp_path / "killed", f".{left(whole)[0]}.part"
    with monkeypatch.context() as patch:
        if tidied:
            patch.setattr(module, "_tidy", Failing.fail)
        with pytest.raises(Unfinished):
            open_store(killed, recipe(corpus, words, launcher=lambda _: None if tidied else Failing()), [].append)
    files = [file.relative_to(killed / part) for file in sorted((killed / part).rglob("*")) if file.is_file()]
    assert {Path("tokenizer.json"), Path("train-00001.seen.npy"), Path("spool/train-00001.txt")} < {*files}
    assert (Path("manifest.json") in files) is tidied
    for file, damage in zip(files, cycle(damages), strict=False):
        shutil.copytree(killed, tmp_path / "damaged")
        DAMAGES[damage](tmp_path / "damaged" / part / file)
        store = open_store(tmp_path / "damaged", recipe(corpus, words), [].append)
        assert contents(store.folder) == expected, (file, damage)
        assert left(tmp_path / "damaged") == [store.key], file
        shutil.rmtree(tmp_path / "damaged")


def test_tokens_are_those_of_the_tokenizers_library(tmp_path: Path) -> None:
    """For text that normalization changes: stress marks, accents that stand alone, parts of Korean syllables."""
    korean = "\u1112\u1161\u11ab\u1100\u116e\u11a8"
    odd = ["\u0437\u0430\u0301\u043c\u043e\u043a", "cafe\u0301 e\u0302\u0301", korean, "\ufb01 \u2460"]
    text = [f"{odd[n % 4]} number {n} {odd[n % 3]}" for n in range(120)]
    for name in ("wordpiece", "bpe", "unigram"):
        trainer = partial(tokenizers.get(name).component, vocab_size=300)
        store = open_store(tmp_path / name, recipe(Documents(text), trainer, overlap=1.0), [].append)
        separator, documents = store.special["sep"], set[tuple[int, ...]]()
        for split in SPLITS:
            ids = np.array(stream(store, split))
            ends = np.flatnonzero(ids == separator)
            documents |= {tuple(part[part != separator].tolist()) for part in np.split(ids, ends)}
        assert documents - {()} == {tuple(store.tokenizer.encode(t, add_special_tokens=False).ids) for t in text}


def test_a_store_of_another_library_is_pointed_out(tmp_path: Path) -> None:
    """Stores of version 0.1 could be tokenized by tokie."""
    store = open_store(tmp_path, recipe(Documents(TEXT), words), [].append)
    next(iter(store.manifest.shards["validation"].values())).engine = "tokie"
    store.manifest.checksum = store.manifest.own_checksum()
    (store.folder / "manifest.json").write_text(store.manifest.model_dump_json())
    said: list[str] = []
    open_store(tmp_path, recipe(Documents(TEXT), words), said.append)
    assert [str(store.folder) in line and "--rebuild" in line for line in said] == [True]


def test_training_text_that_repeats_held_out_text_is_left_out(tmp_path: Path) -> None:
    own = lambda text, split: Document(text, split=split)  # noqa: E731
    held, seen, fresh = (" ".join(f"w{(n * step) % 100}" for n in range(60)) for step in (3, 7, 9))
    half = " ".join(held.split()[:30] + fresh.split()[:30])
    few = " ".join(held.split()[:14] + fresh.split())
    documents = [own(held, "validation"), own(held, "test"), own(seen, "test"), own(seen, "train"),
                 own(held, "train"), own(half, "train"), own(few, "train"), own(fresh, "train")]  # fmt: skip
    store = open_store(tmp_path, recipe(Documents(documents), words, overlap=0.1), [].append)
    found = {split: [" ".join(d) for d in each] for split, each in sides(store).items()}
    assert found == {"validation": [held], "test": [seen], "train": [few, fresh]}
    assert [s.overlapping for each in store.manifest.shards.values() for s in each.values()] == [3, 0, 1]
    characters = {split: s.characters for split, each in store.manifest.shards.items() for s in each.values()}
    assert characters == {split: sum(map(len, texts)) for split, texts in found.items()}
    # Two of the 48 + 48 runs: the first 14 words of `held`.
    assert store.overlap == pytest.approx(2 / 96)


def test_everything_may_be_kept(tmp_path: Path) -> None:
    own = [Document("w1 w2", split=split) for split in ("train", "validation", "test")]
    store = open_store(tmp_path, recipe(Documents(own), words, overlap=1.0), [].append)
    assert store.documents == {"train": 1, "validation": 1, "test": 1}
    assert store.overlap == 1.0


def test_a_training_split_that_is_all_overlap_is_a_sentence(tmp_path: Path) -> None:
    own = [Document("w1 w2", split="train"), Document("w1 w2", split="validation"), Document("w3", split="test")]
    with pytest.raises(DataError, match=r"the training split has no tokens.*\(data\.overlap 0\.1\)"):
        open_store(tmp_path, recipe(Documents(own), words, overlap=0.1), [].append)
    assert left(tmp_path) == []


def test_a_copy_is_opened_anywhere_and_checked_there(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a", recipe(Documents(TEXT), words), [].append)
    assert load_store(store.folder).key == store.key
    copy = tmp_path / "elsewhere" / "any name"
    copy.mkdir(parents=True)
    for name, data in contents(store.folder).items():
        (copy / name).write_bytes(data)
    assert sides(load_store(copy)) == sides(store)
    assert load_store(copy).key == store.key
    flip(copy / "train-00000.bin")
    with pytest.raises(DataError, match=r"the checksum of train-00000\.bin is wrong"):
        load_store(copy)


def with_few_open_files(folder: str) -> None:
    """Load a store where the limit is low; in a process of its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
    _allow_open_files(5000)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(5256, hard))
    print(len(load_store(Path(folder)).train))


@pytest.mark.usefixtures("small_pieces")
def test_more_shards_than_open_files_are_allowed(forks: Lab, tmp_path: Path) -> None:
    """The limit that most systems begin with is raised, as each shard stays open."""
    store = open_store(tmp_path, recipe(Documents(TEXT), words), [].append)
    done = forks(f"{__name__}:{with_few_open_files.__name__}", store.folder, cwd=tmp_path)
    assert done.out.split() == ["True", str(len(store.train))], done.err


def test_checksums_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, recipe(Documents(TEXT), words), [].append)
    monkeypatch.setattr("electra_lab.data.build.sha256", lambda _: pytest.fail("it reads a file again"))
    load_store(store.folder)
    monkeypatch.undo()
    os.utime(store.folder / "train-00000.bin")
    load_store(store.folder)  # another time: read once more, and sound


def test_a_store_on_a_disk_that_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, recipe(Documents(TEXT), words), [].append)
    os.utime(store.folder / "train-00000.bin")

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("electra_lab.data.store.write_whole", refuse)
    assert sides(load_store(store.folder)) == sides(store)
