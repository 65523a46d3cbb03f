"""electra-lab play: what its page shows, and whom it answers."""

import html
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import electra_lab
from electra_lab.cli import _server
from electra_lab.cli._server import MOST_BYTES, Server
from electra_lab.cli.play import LONGEST, _Page
from electra_lab.inference.scoring import percentile
from registry.errors import ConfigError
from tests.electra_lab.cli.conftest import CPU, Lab
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run
from tests.pages import Page

EVIL = '<script>alert("x")</script> the cat & [MASK]'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("played")
    with for_a_module():
        yield run(experiment(folder), folder / "run")


@contextmanager
def served(answer: Any) -> Iterator[Server]:
    with Server(0, answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(
    server: Server, fields: dict[str, str] | bytes | None = None, path: str = "/", **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Return status, text and headers of the answer to a form; without fields, of the page."""
    connection = HTTPConnection(*server.server_address[:2], timeout=30)
    body = urlencode(fields).encode() if isinstance(fields, dict) else fields
    if body is not None:
        headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    connection.request("GET" if body is None else "POST", path, body, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text, dict(response.getheaders())


def test_a_pair_is_played_with(trained: Path) -> None:
    pair = electra_lab.load(trained, device="cpu")
    page, text = _Page(pair), "the cat sat\non the mat"
    page.reference = [-1.0, 0.0, 1.0]
    with served(page) as server:
        status, first, _ = asked(server)
        assert (status, Page(first).all("section")) == (200, [])
        labels = {label["for"]: label.text for label in Page(first).all("label")}
        controls = [node for tag in ("textarea", "input") for node in Page(first).all(tag)]
        assert labels.keys() == {node["id"] for node in controls}
        _, given, _ = asked(server, {"text": text.replace("\n", "\r\n"), "share": "0.5", "seed": "3"})
    shown = Page(given)
    assert [heading.text for heading in shown.all("h2")] == [
        "What the detector suspects", "What the generator would write", "How unusual the text is",
    ]  # fmt: skip
    detected, corrupted, scored = pair.detect(text), pair.corrupt(text, mask_prob=0.5, seed=3), pair.score(text)
    rows = shown.table("What the detector suspects")[1:]
    assert rows == [[token, f"{p:.3f}"] for token, p in zip(detected.tokens, detected.probabilities, strict=True)]
    written = shown.table("What the generator would write")[1:]
    assert [row[0] for row in written] == [corrupted.tokens[place] for place in corrupted.candidates]
    best = next(iter(corrupted.candidates.values()))
    assert written[0][1] == ", ".join(f"{candidate.name} {candidate.probability:.2f}" for candidate in best)
    assert [node.text for node in shown.all("s")] == [text[slice(*corrupted.offsets[at])] for at in corrupted.written]
    assert f"{percentile(scored.score, page.reference):.1f} % of 3 normal texts" in given
    assert f"Score {scored.score:.3f}." in given
    # Colours are as strong as the numbers, the text is unchanged, and the form has it again.
    paragraphs = [node for node in shown.all("p") if node["class"] == "text whole"]
    assert [paragraphs[place].text for place in (0, 2)] == [text, text]
    strengths = [float(span["style"].split(", ")[-1].rstrip(")")) for span in paragraphs[0].all("span")]
    assert strengths == pytest.approx([0.85 * p for p in detected.probabilities], abs=0.006)
    assert shown.all("textarea")[0].text.removeprefix("\n") == text
    assert [node["value"] for node in shown.all("input")] == ["0.5", "3"]


def test_masks_are_filled_and_nothing_that_is_typed_becomes_markup(trained: Path) -> None:
    pair = electra_lab.load(trained, device="cpu")
    with served(_Page(pair)) as server:
        status, text, headers = asked(server, {"text": EVIL, "seed": '"><script>'})
    page = Page(text)
    assert (status, "script" in page.tags, page.all("textarea")[0].text.strip()) == (200, False, EVIL)
    assert "'none'" in headers["Content-Security-Policy"]
    first = pair.fill(EVIL).candidates[0][0]
    [[number, choices]] = page.table("What the generator would write")[1:]
    assert (number, choices.startswith(f"{first.name} {first.probability:.2f}, ")) == ("1", True)
    legends = [paragraph.text for paragraph in page.all("p") if paragraph["class"] == "note"][1:]
    assert ["masks are filled" in legend for legend in legends] == [True, False, True]
    assert not [name for name, _ in page.attributes if name in ("src", "href")]
    assert "</title>" in text


def test_each_task_shows_its_prediction(tuned: dict[str, Path]) -> None:
    for name, fields in {
        "labels": {"text": "the cat sat"}, "pairs": {"text": "the cat sat", "second": "the cat"},
        "numbers": {"text": "the cat sat"}, "tags": {"text": "the cat sat"},
        "answers": {"text": "who sat?", "second": "the cat sat"},
    }.items():  # fmt: skip
        model = electra_lab.load(tuned[name], device="cpu")
        with served(_Page(model)) as server:
            _, text, _ = asked(server, fields)
            expected = model.predict([tuple(fields.values()) if len(fields) > 1 else fields["text"]])[0]
            rows = Page(text).table("The prediction")[1:]
            if name == "tags":
                assert [row[1] for row in rows] == expected.prediction
            elif isinstance(expected.probabilities, dict):
                assert rows == [[label, f"{p:.3f}"] for label, p in expected.probabilities.items()]
            else:
                written = expected.prediction
                assert rows[0][0] == (written if isinstance(written, str) else f"{written:.3f}")
            if name != "tags":
                [shown] = [paragraph.text for paragraph in Page(text).all("p") if paragraph["class"] == "text whole"]
                answer = expected.prediction or "(no answer)"
                assert shown == (f"{answer:.4g}" if name == "numbers" else answer)
                assert (f"is {expected.probability or 0:.3f}." in text) == (expected.probability is not None)
            assert len(Page(text).all("textarea")) == len(model.job.names)
            if len(fields) > 1:  # both are needed
                del fields["second"]
                status, text, _ = asked(server, fields)
                assert (status, [node["role"] for node in Page(text).all("p") if node["role"]]) == (200, ["alert"])


@pytest.mark.parametrize("fields", [{"text": " "}, {"text": "a" * (LONGEST + 1)}, {"text": "a", "share": "2"},
                                    {"text": "a", "seed": "x"}, {"text": "a", "share": "nan"}])  # fmt: skip
def test_a_mistake_is_a_sentence_in_the_page(trained: Path, fields: dict[str, str]) -> None:
    with served(_Page(electra_lab.load(trained, device="cpu"))) as server:
        status, text, _ = asked(server, fields)
    assert status == 200
    [said] = [node for node in Page(text).all("p") if node["role"] == "alert"]
    assert said.text.endswith(".")
    assert Page(text).all("section") == []


def test_any_draw_has_a_text(trained: Path) -> None:
    with served(_Page(electra_lab.load(trained, device="cpu"))) as server:
        for seed in ("", "-1", "9" * 40):
            status, text, _ = asked(server, {"text": "the cat sat", "seed": seed, "share": ""})
            assert (status, len(Page(text).all("section"))) == (200, 3)


def test_only_this_machine_and_this_page_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, str]] = []

    def answer(fields: dict[str, str]) -> str:
        seen.append(dict(fields))
        if fields.get("text") == "fails":
            raise RuntimeError("secret")
        return "<p>yes"

    with served(answer) as server:
        assert server.server_address[0] == "127.0.0.1"
        here, form = f"127.0.0.1:{server.server_port}", {"text": "ä"}
        for host in (here, f"localhost:{server.server_port}", "localhost:9", "LOCALHOST"):  # a tunnel has another port
            assert asked(server, Host=host)[0] == asked(server, form, Host=host, Origin=f"http://{host}")[0] == 200
        assert seen[1] == form
        seen.clear()
        for host in ("evil.example", f"127.0.0.1.evil.example:{server.server_port}", "0.0.0.0", "", "[", "a@b"):
            assert asked(server, Host=host)[0] == asked(server, form, Host=host)[0] == 403
        for origin in ("null", "https://evil.example", f"https://{here}", "http://127.0.0.1:9"):
            assert asked(server, form, Origin=origin)[0] == 403
        long = b"text=" + b"a" * MOST_BYTES
        for status, body, more in (
            (404, None, {"path": "/other"}), (404, b"", {"path": "/../x"}),
            (415, b"{}", {"Content-Type": "text/plain"}),
            (413, b"", {"Content-Length": str(len(long))}), (413, b"", {"Content-Length": "1" * 5000}),
            (411, b"", {"Content-Length": "-1"}),
            (400, b"text=%ff", {}), (400, "text=ä".encode(), {}), (400, b"&".join([b"a=1"] * 21), {}),
        ):  # fmt: skip
            assert asked(server, body, **more)[0] == status
        assert seen == []
        status, text, headers = asked(server, {"text": "fails"})
        assert (status, "secret" in text) == (500, False)
        assert "secret" in capsys.readouterr().err
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        with socket.create_connection(server.server_address[:2]):  # a connection without a request
            assert asked(server)[0] == 200
        assert html.escape(server.address) == f"http://{here}/"


def test_a_taken_port_is_a_sentence_and_ctrl_c_ends_it(lab: Lab, trained: Path) -> None:
    with Server(0, lambda fields: "") as server:
        with pytest.raises(ConfigError, match=f"--port {server.server_port}: "):
            Server(server.server_port, lambda fields: "")
        said = lab.fails(2, "play", trained, "--port", server.server_port, "--no-browser", *CPU)
        assert f"--port {server.server_port}" in said
    command = [sys.executable, "-m", "electra_lab", "play", trained, "--port", "0", "--no-browser", *CPU]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        connection = HTTPConnection(address.removeprefix("http://").strip("/"), timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in err) == (130, False)


def test_a_browser_is_opened_where_there_is_a_desktop(lab: Lab, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(_server.Server, "serve_forever", lambda self: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for display, words, number in ((":0", (), 1), (":0", ("--no-browser",), 1), ("", (), 1)):
        monkeypatch.setenv("DISPLAY", display)
        code, out, _ = lab("play", trained, "--port", "0", *words, *CPU)
        assert (code, len(opened)) == (0, number)
    assert out.startswith("http://127.0.0.1:")


def test_normal_texts_are_scored_before_the_page_opens(
    lab: Lab,
    trained: Path,
    tuned: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    references: list[list[float]] = []
    monkeypatch.setattr(_server.Server, "serve_forever", lambda self: references.append(self.answer.reference))
    Path("normal.txt").write_text("the cat sat\nthe the the\nsat\n")
    words = ("--normal", "normal.txt", "--no-browser", "--port", "0", *CPU)
    assert lab("play", trained, *words)[0] == 0
    pair = electra_lab.load(trained, device="cpu")
    expected = sorted(pair.score(text).score or 0.0 for text in ("the cat sat", "the the the", "sat"))
    assert references == [pytest.approx(expected, abs=1e-5)]
    assert "normal.txt" not in lab.fails(2, "play", tuned["labels"], *words)  # it has no scores
