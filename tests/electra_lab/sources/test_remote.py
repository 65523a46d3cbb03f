"""Corpora in object stores and on servers: a real S3 server (moto's), and a server of HTTP with faults."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from electra_lab.config.load import load
from electra_lab.corpora.json_lines import JsonLines
from electra_lab.corpora.mds import Mds
from electra_lab.corpora.parquet import Parquet
from electra_lab.corpora.text_files import TextFiles
from electra_lab.sources import remote
from registry.component import Url
from registry.errors import ConfigError, DataError
from tests.helpers import ROOT, exit_code, python, write_experiment

pytest.importorskip("aiohttp", reason="needs electra-lab[remote]")
has_s3 = importlib.util.find_spec("s3fs") and importlib.util.find_spec("moto") and importlib.util.find_spec("flask")
needs_s3 = pytest.mark.skipif(not has_s3, reason="needs s3fs and moto[server]")
LINES = [f"line {n} of a text that is long enough" for n in range(9000)]
Fault = Callable[["Server", BaseHTTPRequestHandler], bool]  # True if it has answered


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0.001)
    monkeypatch.setattr(remote, "BLOCK", 1 << 16)
    remote._file_system.cache_clear()


class Server:
    """Files by path, with ETags and ranges. `fault` may answer a request in another way."""

    def __init__(self) -> None:
        self.files = dict[str, bytes]()
        self.requests = list[tuple[str, str, str]]()  # method, path, range
        self.fault: Fault = lambda server, request: False
        self.ranges = self.sized = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.command, self.path, self.headers.get("Range", "")))
                if not outer.fault(outer, self):
                    outer.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request: BaseHTTPRequestHandler, status: int = 200, cut: int | None = None) -> None:
        """cut: number of bytes after which the connection breaks."""
        content = self.files.get(request.path, b"")
        status = status if status != 200 or request.path in self.files else 404
        tag, whole = hashlib.md5(content).hexdigest(), len(content)
        begin, length = 0, len(content)
        if (asked := request.headers.get("Range")) and self.ranges and status == 200:
            first, last = asked.removeprefix("bytes=").split("-")
            begin = int(first)
            content, status = content[begin : int(last or whole) + 1], 206
            length = len(content)
        request.send_response(status)
        if status == 302:
            request.send_header("Location", request.path)
        request.send_header("ETag", f'"{tag}"')
        if self.sized or status >= 400:
            request.send_header("Content-Length", str(length if status < 400 else 0))
        if status == 206:
            request.send_header("Content-Range", f"bytes {begin}-{begin + length - 1}/{whole}")
        if self.ranges:
            request.send_header("Accept-Ranges", "bytes")
        request.end_headers()
        if request.command == "GET" and status < 400:
            request.wfile.write(content if cut is None else content[:cut])
        request.close_connection = True


def serving(made: Server) -> Iterator[Server]:
    thread = threading.Thread(target=made.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield from serving(made)


def corpus(server: Server, name: str, **options: Any) -> TextFiles:
    return TextFiles(paths=[Path(f"{server.url}/{name}")], documents="lines", **options)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_resumed_at_the_byte(server: Server, name: str, ranges: bool) -> None:
    """Nothing is missing or there twice, although many answers are cut at other places."""
    text = "\n".join(LINES).encode()
    server.files[f"/{name}"] = gzip.compress(text) if name.endswith(".gz") else text
    server.ranges, cuts = ranges, 0

    def cut(server: Server, request: BaseHTTPRequestHandler) -> bool:
        nonlocal cuts
        if request.command == "HEAD" or cuts >= 4 or request.headers.get("Range") == "bytes=0-0":
            return False
        cuts += 1
        server.answer(request, cut=1000 * cuts)
        return True

    made = corpus(server, name)
    server.fault = cut
    assert list(made) == LINES
    assert cuts == 4


def test_a_long_file_without_ranges_is_read_as_a_stream(server: Server) -> None:
    """Longer than a request; the stream breaks twice, and is then read on at the byte, and asked for no oftener."""
    lines = LINES * 8
    text, cuts = "\n".join(lines).encode(), [2_000_000, 1_500_000]
    server.files["/a.txt"], server.ranges = text, False

    def cut(server: Server, request: BaseHTTPRequestHandler) -> bool:
        if request.command == "HEAD" or request.headers.get("Range") or not cuts:
            return False
        server.answer(request, cut=cuts.pop())
        return True

    made = corpus(server, "a.txt")
    server.fault = cut
    server.requests.clear()
    assert list(made) == lines
    gets = [part for method, _, part in server.requests if method == "GET"]
    assert (cuts, gets[-3:], len(gets) <= 5) == ([], ["", "", ""], True)
    with remote.opened(Url(f"{server.url}/a.txt")) as raw:
        raw.seek(len(text) - 9)
        assert raw.read() == text[-9:]
        raw.seek(0)
        with pytest.raises(DataError, match="cannot send parts"):
            raw.read(9)


@pytest.mark.parametrize(
    ("status", "word", "attempts"),
    [
        (403, "denied", 1),
        (404, "no such file", 1),
        (400, "status 400", 1),
        (302, "redirects", 1),
        (500, "status 500, at 6 attempts", 6),
    ],
)
def test_refusals_are_sentences_and_only_what_may_pass_is_tried_again(
    server: Server, status: int, word: str, attempts: int
) -> None:
    server.files["/a.txt"] = b"text"
    made = corpus(server, "a.txt")
    server.requests.clear()
    server.fault = lambda server, request: bool(server.answer(request, status)) or True
    with pytest.raises(DataError, match=word) as error:
        list(made)
    assert str(error.value).startswith(f"{server.url}/a.txt: ")
    hops = 10 if status == 302 else 1
    assert sum(method == "HEAD" for method, _, _ in server.requests) in (attempts * hops, 0)
    with pytest.raises(DataError, match=word):
        corpus(server, "a.txt")


def test_failed_requests_are_noted(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user who waits for a broken server sees why, also in `check`; and the answer for programs stays alone."""
    server.files["/a.txt"], cuts = "\n".join(LINES).encode(), [900, 800]
    file = write_experiment(tmp_path, corpus=f"{{type: text_files, paths: ['{server.url}/a.txt'], documents: lines}}")
    words = [str(file), "--set", f"data.store={tmp_path / 'store'}"]
    note = rf"note: {server.url}/a\.txt: a request failed \((.*)\); attempt (\d) of 6\n"

    def cut(server: Server, request: BaseHTTPRequestHandler) -> bool:
        if request.command == "HEAD" or request.headers.get("Range") == "bytes=0-0" or not cuts:
            return False
        server.answer(request, cut=cuts.pop())
        return True

    server.fault = cut
    assert exit_code("prepare", "--json", *words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["read"] == [f"{server.url}/a.txt"]
    (first, second), (third, fourth) = re.findall(note, said.err)
    assert ("800" in first, second, "900" in third, fourth) == (True, "2", True, "3")
    server.fault = lambda server, request: bool(server.answer(request, 500)) or True
    assert exit_code("check", *words) == 0
    noted = re.findall(note, capsys.readouterr().err)
    assert noted == [("the server answers with status 500", str(attempt)) for attempt in range(2, 7)]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_while_a_file_is_read_prints_nothing(server: Server, tmp_path: Path, number: int) -> None:
    text, begun = "\n".join(LINES * 9).encode(), threading.Event()
    server.files["/a.txt"] = text

    def hang(server: Server, request: BaseHTTPRequestHandler) -> bool:
        if request.command == "HEAD" or request.headers.get("Range") == "bytes=0-0":
            return False
        server.ranges = False
        server.answer(request, cut=200_000)
        begun.set()
        time.sleep(1)
        return True

    server.fault = hang
    file = write_experiment(tmp_path, corpus=f"{{type: text_files, paths: ['{server.url}/a.txt'], documents: lines}}")
    command = [sys.executable, "-m", "electra_lab", "prepare", str(file), "--set", f"data.store={tmp_path / 'store'}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert begun.wait(60)
        time.sleep(0.3)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, "reading the corpus (once; the result is kept)\n")


def test_a_file_of_unknown_size_is_refused(server: Server) -> None:
    """Where it ends, the connection may have been lost."""
    server.files["/a.txt"], server.sized, server.ranges = "\n".join(LINES).encode(), False, False
    server.fault = lambda server, request: bool(server.answer(request, cut=5000)) or True
    made = corpus(server, "a.txt")
    for read in (lambda: list(made), made.fingerprint, lambda: remote.opened(Url(f"{server.url}/a.txt"))):
        with pytest.raises(DataError, match=r"a\.txt: its server sends no size"):
            read()


def test_a_file_that_changes_while_it_is_read_is_refused(server: Server) -> None:
    """Between two parts, with a broken connection between them or not; and between the fingerprint and the reading."""
    text = "\n".join(LINES).encode()
    for cut in (None, 5000):
        server.files["/a.txt"] = text
        made, read = corpus(server, "a.txt"), iter(())
        read = iter(made)
        assert next(read) == LINES[0]
        server.files["/a.txt"] = text.replace(b"line", b"lime")
        if cut:
            asked = list[str]()

            def once(server: Server, request: BaseHTTPRequestHandler, cut: int = cut, asked: list[str] = asked) -> bool:
                asked.append(request.command)
                if request.command == "GET" and asked.count("GET") == 1:
                    server.answer(request, cut=cut)
                    return True
                return False

            server.fault = once
        with pytest.raises(DataError, match=r"a\.txt: changed while it was read"):
            list(read)
        server.fault = lambda server, request: False
    made = corpus(server, "a.txt")
    before = made.fingerprint()
    server.files["/a.txt"] = text
    with pytest.raises(DataError, match="changed"):
        list(made)
    assert corpus(server, "a.txt").fingerprint() != before
    server.files["/b.txt"] = text
    assert corpus(server, "b.txt").fingerprint() == corpus(server, "a.txt").fingerprint()  # wherever it is


def test_an_experiment_names_addresses(tmp_path: Path, server: Server) -> None:
    server.files["/a.txt"] = b"text"
    file = write_experiment(tmp_path, corpus=f"{{type: text_files, paths: ['{server.url}/a.txt', corpus.txt]}}")
    loaded = load(file)
    assert [str(path) for path in loaded.config.corpus.options.paths] == [
        f"{server.url}/a.txt", str(tmp_path.resolve() / "corpus.txt")
    ]  # fmt: skip
    assert str(loaded.portable.corpus.options.paths[0]) == f"{server.url}/a.txt"
    assert f"{server.url}/a.txt" in json.dumps(loaded.config.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("address", "word"),
    [("http://me:hunter2@host/a.txt", "environment"), ("s3://me:hunter2@bucket/a.txt", "environment"),
     ("https://host/a?X-Amz-Signature=hunter2", "environment"), ("https://host/a?b=1&%73ig=hunter2", "environment"),
     ("https://host/a.txt?ACCESS_TOKEN=hunter2", "environment"), ("s3://b//a.txt", "//"), ("s3://b/./a.txt", "//"),
     ("s3://b/in/../a.txt", "//"), ("https://host/a/", "//"), ("s3:///a.txt", "//"), ("s3://", "names no file"),
     ("s3://me:hunt/hunter2@bucket/a.txt", "environment"), ("https://me:hunt/hunter2@host/a.txt", "environment"),
     ("hf://me:hunter2@datasets/a.txt", "environment"), ("https://host/a?b=1#token=hunter2", "environment"),
     ("https://host/a?API_KEY=hunter2", "environment"), ("s3:/b/a.txt", "s3://, with two"),
     ("s3:/me:hunter2@b/a.txt", "environment"), ("S3://me:hunter2@b/a.txt", "S3://.* s3, gs"),
     ("ftp://me:hunter2@b/a.txt", "ftp://.* s3, gs")],
)  # fmt: skip
def test_an_address_with_a_secret_or_of_another_object_is_refused(tmp_path: Path, address: str, word: str) -> None:
    file = write_experiment(tmp_path, corpus=f"{{type: text_files, paths: [corpus.txt, '{address}']}}")
    with pytest.raises(ConfigError, match=rf"corpus\.paths\.1: .*{word}") as error:
        load(file)
    assert "hunter2" not in str(error.value)
    if "hunter2" in address:
        escaped = address.replace("@", r"\x40").replace("?", r"\x3f")
        for value in (f'["{address}"]', address, f'["{address}', f'["s3://b/a.txt", "{escaped}"]'):
            for key in ("corpus.paths", "nokey", "name", "imports"):
                with pytest.raises(ConfigError, match=rf"^--set {key}=") as error:
                    load(file, [f"{key}={value}"])
                assert "hunter2" not in str(error.value)
    if "//" not in word or ".." in address:
        with pytest.raises(ConfigError, match=word):
            TextFiles(paths=[Path(address)])


def test_ablations_and_fine_tunings_repeat_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = "s3://me:hunter2@bucket/a.txt"
    file, ablation, tuning = write_experiment(tmp_path), tmp_path / "ablation.yaml", tmp_path / "tuning.yaml"
    ablation.write_text(f"name: a\nbase: {file.name}\nseeds: [0]\nvary: {{train.steps: [1, 2]}}\n")
    table = f"{{type: table, train: '{address}', text: a, label: b}}"
    tuning.write_text(f"name: t\nmodel: run\ntask: {{type: text_classification}}\ndataset: {table}\n")
    varied = f'vary={{"corpus.paths": [["{address}"], ["corpus.txt"]]}}'
    for command in (
        ("ablate", ablation, f'set.corpus.paths=["{address}"]'), ("ablate", ablation, varied),
        ("finetune", tuning, f"dataset.train={address}"), ("finetune", tuning, "seeds=[0]"),
    ):  # fmt: skip
        verb, named, setting = command
        assert exit_code(verb, str(named), "--set", setting, "--out", str(tmp_path / "out")) == 2
        said = capsys.readouterr().err
        assert ("environment" in said, "hunter2" in said, (tmp_path / "out").exists()) == (True, False, False)


@pytest.mark.parametrize(
    "address",
    ["s3://b/in/", "s3://b/a?.txt", "https://host/a.txt?page=1", "hf://gpt2@main/a.txt", "http://host:81/a@b.txt"],
)
def test_other_addresses_are_accepted_but_only_of_text(tmp_path: Path, address: str) -> None:
    file = write_experiment(tmp_path, corpus=f"{{type: text_files, paths: ['{address}']}}")
    assert [str(path) for path in load(file).config.corpus.options.paths] == [address.removesuffix("/")]
    for key in ("data.store", "tokenizer={type: pretrained}, tokenizer.path"):
        settings = f"{key}={address}".split(", ")
        with pytest.raises(ConfigError, match=f"{settings[-1].partition('=')[0]}: .*this machine"):
            load(file, settings)


def test_local_files_do_not_import_fsspec(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    code = (
        "import sys; from pathlib import Path; from electra_lab.corpora.text_files import TextFiles\n"
        "made = TextFiles(paths=[Path('a.txt')]); made.fingerprint(); assert list(made) == ['text']\n"
        "print({'fsspec', 'aiohttp'} & {*sys.modules})"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "set()\n", done.stderr


@contextmanager
def proxy(target: str) -> Iterator[Server]:
    """Pass requests to another server, except for those that a fault answers."""
    made = Server()
    host = target.removeprefix("http://")

    def forward(request: BaseHTTPRequestHandler, cut: int | None = None) -> None:
        connection = HTTPConnection(host)
        connection.request(request.command, request.path, headers=dict(request.headers))
        response = connection.getresponse()
        content = response.read()
        request.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content if cut is None else content[:cut])
        request.close_connection = True

    made.answer = lambda request, status=200, cut=None: forward(request, cut)  # type: ignore[method-assign]
    yield from serving(made)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Server]]:
    """A bucket `texts` behind a proxy with faults."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    with proxy(f"http://{host}:{port}") as between:
        for key, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{key}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        import boto3

        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket="texts")
        yield client, between
    moto.stop()


@needs_s3
def test_all_formats_in_a_bucket_give_the_documents_of_local_files(bucket: tuple[Any, Server], tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    client, between = bucket
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("\n".join(LINES[:50]))
    (tmp_path / "deep" / "b.txt.gz").write_bytes(gzip.compress("\n".join(LINES[50:90]).encode()))
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "deep" / ".cache" / "x").mkdir(parents=True)
    (tmp_path / "deep" / ".cache" / "x" / "b.txt").write_text("hidden")
    (tmp_path / "deep" / "c.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    parquet.write_table(pyarrow.table({"text": LINES}), tmp_path / "d.parquet", row_group_size=700)
    shutil.copytree(ROOT / "tests" / "data" / "mds" / "plain", tmp_path / "mds")
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        client.upload_file(str(file), "texts", f"in/{file.relative_to(tmp_path).as_posix()}")
    kinds: list[tuple[Any, str, dict[str, Any]]] = [
        (TextFiles, "", {"documents": "lines"}), (TextFiles, "deep/*.gz", {"documents": "lines"}),
        (TextFiles, "*.txt", {"documents": "lines"}), (TextFiles, ".*.txt", {"documents": "lines"}),
        (JsonLines, "deep", {}), (JsonLines, "deep/c.jsonl", {}), (Parquet, "", {}),
        (Parquet, "*.parquet", {}), (Mds, "mds", {}),
    ]  # fmt: skip
    for kind, path, options in kinds:
        between.requests.clear()
        local, made = kind(paths=[tmp_path / path], **options), kind(paths=[Path("s3://texts/in") / path], **options)
        fingerprint = made.fingerprint()
        lists = [path for method, path, _ in between.requests if "list-type" in path and "max-keys" not in path]
        assert len(lists) <= 2, lists
        assert list(made) == list(local)
        begun = [path for _, path, part in between.requests if part.startswith("bytes=0-") and "mds" not in path]
        assert kind is Parquet or len(begun) == len({*begun}), begun
        names = [str(file.relative_to(tmp_path)) for file in local.files()[0]]
        assert [str(file).removeprefix("s3://texts/in/") for file in made.files()[0]] == names
        assert made.fingerprint() == fingerprint == kind(paths=[Path("s3://texts/in") / path], **options).fingerprint()
    client.put_object(Bucket="texts", Key="in/folder/", Body=b"")  # as some tools mark a folder
    assert list(TextFiles(paths=[Path("s3://texts/in")], documents="lines")) == LINES[:90]
    client.put_object(Bucket="texts", Key="odd//a.txt", Body=b"other")
    with pytest.raises(ConfigError, match=r"^s3://texts/odd//a\.txt: an address with //"):
        TextFiles(paths=[Path("s3://texts/odd")])
    client.put_object(Bucket="texts", Key="in/a.txt", Body=b"other")
    assert TextFiles(paths=[Path("s3://texts/in")], documents="lines").fingerprint() != fingerprint


@needs_s3
def test_faults_of_a_bucket(bucket: tuple[Any, Server]) -> None:
    client, between = bucket
    client.put_object(Bucket="texts", Key="a.jsonl", Body="".join(json.dumps({"text": line}) + "\n" for line in LINES))
    made, cuts = JsonLines(paths=[Path("s3://texts/a.jsonl")]), 0

    def cut(server: Server, request: BaseHTTPRequestHandler) -> bool:
        nonlocal cuts
        if request.command == "GET" and "a.jsonl" in request.path and cuts < 3:
            cuts += 1
            server.answer(request, cut=777 * cuts)
            return True
        return False

    between.fault = cut
    assert list(made) == LINES
    assert cuts == 3
    # A changed object, in the middle
    between.fault = lambda server, request: False
    read = iter(JsonLines(paths=[Path("s3://texts/a.jsonl")]))
    next(read)
    client.put_object(Bucket="texts", Key="a.jsonl", Body=b'{"text": "other"}\n' * 9000)
    with pytest.raises(DataError, match=r"s3://texts/a\.jsonl: changed"):
        list(read)
    for wrong, reason in (
        ("texts/none.jsonl", "no such file or bucket"), ("nowhere/a.jsonl", "no such file or bucket"),
        ("texts/*.json", "no file matches"), ("texts/nofolder/*.jsonl", "no file matches"),
        ("*/tiny/t", r"the address is wrong: .*\w.*"),
    ):  # fmt: skip
        message = rf"^s3://{re.escape(wrong)}: .*{reason}"
        with warnings.catch_warnings(action="error"), pytest.raises(DataError, match=message) as error:
            JsonLines(paths=[Path(f"s3://{wrong}")])
        assert "attempts" not in str(error.value)
    client.put_object(Bucket="texts", Key="plain/a.txt", Body=b"text")
    with pytest.raises(DataError, match=r"no file that ends in .*Give a pattern"):
        Mds(paths=[Path("s3://texts/plain")])

    def denied(server: Server, request: BaseHTTPRequestHandler) -> bool:
        request.send_response(403)
        request.send_header("Content-Length", "0")
        request.end_headers()
        request.close_connection = True
        return True

    between.fault = denied
    with pytest.raises(DataError, match="denied"):
        JsonLines(paths=[Path("s3://texts/a.jsonl")])


def test_a_missing_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(DataError, match=r"gs://.*pip install 'electra-lab\[remote\]'"):
        TextFiles(paths=[Path("gs://bucket/a.txt")])
