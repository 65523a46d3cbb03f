"""Bundles: a file or the folder of a job with all that it needs, in one zip file that another machine can open.

Relative paths inside a bundle are those of the original. The same files give the same bytes.
"""

import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import all_suffixes
from io import BytesIO
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from electra_lab.assembly.data import prepared
from electra_lab.config.load import WRITTEN_HERE, kind_of_file, load
from electra_lab.config.portable import Gathered, gathered
from electra_lab.config.source import MAX_BYTES, parse, read_file
from electra_lab.jobs.kinds import ABLATION, of_folder
from electra_lab.jobs.provenance import PACKAGES, folder_of_store, version_of
from electra_lab.storage.ablation_folder import search_of
from electra_lab.storage.catalog import is_held
from electra_lab.storage.files import config_of, new_file, new_folder, open_regular, reason, refuse_unusable, sha256
from electra_lab.storage.provenance import flat, read_provenance
from electra_lab.storage.run_directory import is_run
from electra_lab.version import __version__
from registry.errors import ConfigError, DataError, InUse, LabError, is_shortage

MANIFEST, VERSIONS = "bundle.json", "requirements.txt"
TOKENS = "tokens"  # folder of the token store of a file, which has no place relative to it
TRANSIENT = {"claims", "slurm", "damaged"}  # folders of an ablation
WEIGHTS = {"checkpoints", "model"}  # folders of runs
COPIES = {"files", "plugins"}  # folders of copies, which hold files of any name
INCOMPRESSIBLE = {".safetensors", ".bin", ".npy"}
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time of every file of a bundle
# What `open` refuses: more files, or more bytes for each byte of the bundle (beyond a harmless number).
MOST_FILES, MOST_RATIO, HARMLESS = 500_000, 200, 64 << 20
STRANGE = re.compile(r"[\x00-\x1f\\]|^[A-Za-z]:")  # in the place of a file
PIECE = 1 << 20  # bytes that are copied at once
STORE = ("data", "store")


class Bundle(BaseModel):
    """The content of bundle.json.

    main    place of the file or folder
    folder  True if that is the folder of a job
    tokens  place of the token store that came with a file
    """

    format: Literal[1] = 1
    electra_lab: str
    kind: Annotated[str, Field(pattern="^(experiment|fine-tuning|ablation)$")]
    main: str
    folder: bool
    tokens: str = ""


Places = dict[str, Path | bytes]  # content of a bundle's files, by their places


def bundle(source: Path, out: Path, *, checkpoints: bool = False, tokens: bool = False) -> Places:
    """Write a file or the folder of a job to a zip file; returns its content. Raises LabError.

    checkpoints  include checkpoints and fine-tuned models, and the models that they start from
    tokens       include token stores
    """
    refuse_unusable(source)
    refuse_unusable(out)
    if os.path.lexists(out):
        raise ConfigError(f"{out}: exists already. Choose another name, or remove it.")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: its folder does not exist.")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{out}: is inside {source}. Choose a place outside of it.")
    collect = _of_folder if source.is_dir() else _of_file
    described, places = collect(source, checkpoints, tokens)
    _refuse_names(places)
    with new_file(out, "wb") as stream, zipfile.ZipFile(stream, "w") as archive:
        _add(archive, MANIFEST, (described.model_dump_json(indent=1) + "\n").encode())
        for place in sorted(places):
            _add(archive, place, places[place])
    return places


def _refuse_names(places: Iterable[str]) -> None:
    """Raise ConfigError for names that `open` refuses."""
    folded = dict[str, str]()
    for place in sorted(places):
        if STRANGE.search(place):
            raise ConfigError(f"{place!r}: a bundle cannot hold a file of this name. Rename it.")
        if (other := folded.setdefault(place.casefold(), place)) != place:
            raise ConfigError(f"{other} and {place}: are one file on other machines. Rename one of them.")


def _add(archive: zipfile.ZipFile, place: str, content: Path | bytes) -> None:
    entry = zipfile.ZipInfo(place, LONG_AGO)
    entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16  # as on Unix, wherever it is written
    stored = PurePosixPath(place).suffix in INCOMPRESSIBLE
    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with open_regular(content) if isinstance(content, Path) else BytesIO(content) as source:
        entry.file_size = source.seek(0, os.SEEK_END)  # large files have longer headers
        source.seek(0)
        with archive.open(entry, "w") as target:
            shutil.copyfileobj(source, target, PIECE)


def _of_file(file: Path, checkpoints: bool, tokens: bool) -> tuple[Bundle, Places]:
    """Return the file with those that it needs, its token store, and the versions of this machine."""
    read_file(file)
    kind, copies = kind_of_file(file), _complete(file)
    if checkpoints or (tokens and kind != "experiment"):
        option = "--checkpoints" if checkpoints else "--tokens"
        raise ConfigError(f"{option}: works with the folder of a job{'' if checkpoints else ', or an experiment'}.")
    places: Places = {place.as_posix(): content for place, content in copies.files.items()}
    place = ""
    if tokens:
        if (store := prepared(load(file))) is None:
            raise DataError(f"{file}: its text is not tokenized yet. Use electra-lab prepare.")
        place = f"{TOKENS}/{store.folder.name}"
        places |= {f"{place}/{name}": path for name, path in _files_of(store.folder, set())}
    now = [(name, version_of(name)) for name in PACKAGES]
    places[VERSIONS] = _versions([f"electra_lab {__version__}"], now)
    main = copies.main.as_posix()
    return Bundle(electra_lab=__version__, kind=kind, main=main, folder=False, tokens=place), places


def _complete(file: Path) -> Gathered:
    copies = gathered(file)
    if copies.elsewhere:
        raise ConfigError("\n".join(f"{place}: write a path relative to this file." for place in copies.elsewhere))
    if copies.missing:
        raise ConfigError("\n".join(f"{place}: does not exist." for place in copies.missing))
    return copies


def _of_folder(folder: Path, checkpoints: bool, tokens: bool) -> tuple[Bundle, Places]:
    """Return the files of a job's folder, and of others that it needs if wanted; and the versions of its runs."""
    kind, folder = of_folder(folder), folder.resolve()
    if any(map(is_held, [folder / ".lock", *(folder / "claims").glob("*")])):
        raise InUse(f"{folder}: is in use by another process. Wait for its end, or stop it.")
    if kind is ABLATION:
        if search := search_of(folder):
            raise ConfigError(f"{folder}: belongs to a search. Give the folder of that: {search}")
        _complete(folder / "ablation.yaml")
    runs = [file.parent for file in sorted(folder.rglob("provenance.json")) if is_run(file.parent)]
    models = set(chain.from_iterable(map(_models, runs))) if checkpoints else set()
    stores = set(chain.from_iterable(map(_stores, runs))) if tokens else set()
    if tokens and not stores:
        raise ConfigError(f"--tokens: {folder} has no runs with a token store.")
    folders = {folder, *models, *stores}
    above = Path(os.path.commonpath([path.parent for path in folders]))
    places = Places()
    for path in folders:
        for name, file in _files_of(path, set() if checkpoints else WEIGHTS):
            places[f"{path.relative_to(above).as_posix()}/{name}"] = file
    made_on = [read_provenance(run).environment for run in runs]
    titles = [f"electra_lab {machine.electra_lab}, Python {machine.python}" for machine in made_on]
    places[VERSIONS] = _versions(titles, chain.from_iterable(machine.packages.items() for machine in made_on))
    main = folder.relative_to(above).as_posix()
    came = next(iter(stores)).relative_to(above).as_posix() if len(stores) == 1 and kind is ABLATION else ""
    return Bundle(electra_lab=__version__, kind=kind.name, main=main, folder=True, tokens=came), places


def _files_of(folder: Path, left_out: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield place and path of each file below a folder, except hidden ones: locks, leftovers, caches.

    Copies of the user's files are whole, whatever they are called.
    """
    for path, below, files in os.walk(folder):
        whole = not COPIES.isdisjoint(Path(path).relative_to(folder).parts)
        without = left_out | TRANSIENT if ABLATION.holds(Path(path)) else left_out
        below[:] = sorted(name for name in below if whole or not (name.startswith(".") or name in without))
        if linked := next((name for name in below if Path(path, name).is_symlink()), None):
            raise ConfigError(f"{Path(path, linked)}: is a link to a folder, which a bundle cannot hold. Copy it here.")
        for name in sorted(files):
            if whole or not name.startswith("."):
                file = Path(path, name)
                if not file.is_file():
                    raise ConfigError(f"{file}: is not a regular file, or a link to nothing. Remove it.")
                if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
                    raise ConfigError(f"{file}: is a link to a file elsewhere. Copy it here.")
                yield file.relative_to(folder).as_posix(), file


def _models(run: Path) -> Iterator[Path]:
    """Yield the folders of the models that a run starts from."""
    config = flat(config_of(run / "config.yaml"))
    for key in sorted(".".join(loc) for loc in WRITTEN_HERE - {STORE}):
        if key in config and os.path.isdir(run / str(config[key])):  # otherwise the name of a model on the hub
            yield Path(os.path.normpath(run / str(config[key])))


def _stores(run: Path) -> Iterator[Path]:
    """Yield the token store of a run, if it is pre-training. Raises DataError if it is not here."""
    if root := flat(config_of(run / "config.yaml")).get(".".join(STORE)):
        store = folder_of_store(Path(os.path.normpath(run / root)), read_provenance(run).data.store)
        if not store.is_dir():
            raise DataError(f"{store}: the token store of {run} is not here. Leave out --tokens.")
        yield store


def _versions(titles: Iterable[str], packages: Iterable[tuple[str, str | None]]) -> bytes:
    """Return requirements.txt; the build of a version, such as +cpu in 2.13.0+cpu, is not on PyPI."""
    lines = [f"# {title}" for title in titles]
    lines += [f"{name}=={version.partition('+')[0]}" for name, version in packages if version]
    return "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode()


def unpack(file: Path, out: Path) -> tuple[Bundle, list[list[str]]]:
    """Unpack a bundle into a new folder; returns its description, and the places of the same code. Runs none of it.

    Raises DataError for a file that is not a bundle or could do harm, ConfigError for a folder that exists.
    """
    refuse_unusable(out)
    if os.path.lexists(out):
        raise ConfigError(f"{out}: exists already. Choose another folder: --out DIR")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: the folder around it does not exist.")
    with _readable(file), open_regular(file) as stream, zipfile.ZipFile(stream) as archive:
        entries = _harmless(file, archive, shutil.disk_usage(out.absolute().parent).free)
        with archive.open(MANIFEST) as content:
            described = Bundle.model_validate_json(content.read(PIECE))
        for wanted in filter(None, [described.main, described.tokens]):
            if not any(f"{place}/".startswith(f"{wanted}/") for place in entries):
                raise DataError(f"{file}: is not a bundle: it lacks {wanted}.")
        with new_folder(out.absolute()) as building:
            for place, entry in entries.items():
                (building / place).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, (building / place).open("xb") as target:
                    shutil.copyfileobj(source, target, PIECE)
    code = dict[str, list[str]]()
    for place in sorted(place for place in entries if place.endswith(tuple(all_suffixes()))):
        code.setdefault(sha256(out / place), []).append(place)
    return described, [*code.values()]


def shell_lines(folder: Path) -> list[Path]:
    """Return the files with shell lines of a launcher."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and _has_shell_lines(file)]


def _has_shell_lines(file: Path) -> bool:
    if file.stat().st_size > MAX_BYTES or not re.search(rb"setup|sbatch|\\", content := file.read_bytes()):
        return False
    try:
        root = parse(content.decode("utf-8-sig"), str(file), file.parent)
    except (ConfigError, UnicodeDecodeError):  # nor can the lab read it
        return False
    keys = set[str]()
    for loc, _ in root.marks():
        keys.update(".".join(map(str, loc)).split("."))
    return bool(keys & {"setup", "sbatch"})


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raise DataError for a damaged or unreadable zip file, or one that is not a bundle."""
    try:
        yield
    except LabError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValidationError, NotImplementedError) as error:
        problem = reason(error)
        if isinstance(error, KeyError | ValidationError):
            problem = "its bundle.json is missing, invalid, or of a later version of electra_lab"
        raise DataError(f"{file}: is not a bundle, or is damaged ({problem}).") from None
    except OSError as error:
        if is_shortage(error):
            raise
        raise DataError(f"{error.filename or file}: {reason(error)}. Nothing was kept.") from None


def _harmless(file: Path, archive: zipfile.ZipFile, free: int) -> Mapping[str, zipfile.ZipInfo]:
    """Return the files of a bundle by their places. Raises DataError for anything that `bundle` would not write.

    free  bytes on the disk
    """
    entries, folded, folders = dict[str, zipfile.ZipInfo](), set[str](), set[str]()
    for entry in archive.infolist():
        place, mode = entry.orig_filename, entry.external_attr >> 16
        parts = PurePosixPath(place).parts
        problem = ""
        if place != "/".join(parts) or {"", "..", "/"} & {*parts}:
            problem = "its place is not below the folder"
        elif STRANGE.search(place):
            problem = "its name is not one on all machines"
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            problem = "it is a link or a device"
        elif entry.flag_bits & 1:
            problem = "it is encrypted"
        elif place.casefold() in folded:
            problem = "it is there twice"
        if problem:
            raise DataError(f"{file}: the file {place!r:.200} in it is refused: {problem}. Nothing was unpacked.")
        entries[place] = entry
        folded.add(place.casefold())
        folders |= {str(above) for above in PurePosixPath(place).parents}
    size, packed = sum(entry.file_size for entry in entries.values()), os.path.getsize(file)
    if both := sorted(folders & entries.keys()):
        raise DataError(f"{file}: {both[0]!r:.200} in it is a file and a folder. Nothing was unpacked.")
    if len(entries) > MOST_FILES or size > max(HARMLESS, MOST_RATIO * packed):
        problem = f"{len(entries):,} files with {size:,} bytes, from {packed:,} bytes"
        raise DataError(f"{file}: is refused, as no bundle looks like this: {problem}. Nothing was unpacked.")
    if size > free:
        raise DataError(f"{file}: needs {size:,} bytes, but the disk has {free:,}. Nothing was unpacked.")
    return entries
