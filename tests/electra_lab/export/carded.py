"""The code of the card of a fine-tuned model, which people paste, and the example that serves it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.helpers import ROOT

Predict = Callable[..., Any]
WITHOUT = {"transformers": ("onnxruntime",), "onnxruntime": ("torch", "transformers", "electra_lab")}


def pasted(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Predict]:
    """Run the code of a card in its folder; returns its function `predict` for each library that it is for."""
    functions = dict[str, Predict]()
    patch.chdir(folder)
    for part in (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]:
        code, names = part.partition("```")[0], dict[str, Any]()
        library = "onnxruntime" if "import onnxruntime" in code else "transformers"
        with patch.context() as without, for_a_module():
            for module in WITHOUT[library]:
                without.setitem(sys.modules, module, None)
            exec(code, names)  # also what it prints
        functions[library] = names["predict"]
    return functions


@contextmanager
def serving(folder: Path) -> Iterator[Predict]:
    """Start examples/serve.py with the model of a folder; yields a function from inputs to status and answer."""
    for module in ("fastapi", "uvicorn"):
        pytest.importorskip(module, reason="examples/serve.py needs it")
    command = [sys.executable, "-m", "uvicorn", "--app-dir", ROOT / "examples", "serve:app", "--port", "0"]
    with subprocess.Popen(
        command, env={**os.environ, "MODEL": str(folder)}, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        said = iter(server.stderr.readline, "")
        found = (re.search(r"running on (http://127\.0\.0\.1:\d+)", line) for line in said)
        address = next(match[1] for match in found if match)

        def post(inputs: Any) -> tuple[int, Any]:
            body = json.dumps({"inputs": inputs}).encode()
            request = Request(f"{address}/predict", body, {"content-type": "application/json"})
            try:
                with urlopen(request, timeout=60) as response:
                    return response.status, json.load(response)
            except HTTPError as error:
                return error.code, json.load(error)["detail"]

        try:
            yield post
        finally:
            server.terminate()
