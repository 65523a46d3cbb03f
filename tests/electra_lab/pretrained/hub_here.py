"""A hub of this machine, as far as a download needs one, and downloads from it: `hub_here.py FOLDER_OF_MODELS NAME...`

Prints a line per name: the files that came, and the number of tensors in them or the error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(sys.argv[1])
COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self._answer()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the server's own name

    def _answer(self) -> bytes:
        kind, *parts = self.path.split("?")[0].strip("/").split("/")
        headers, status, body = {}, 200, b"{}"
        if kind == "api" and parts[0] == "models":
            folder = ROOT / "/".join(parts[1:3])
            files = [{"type": "file", "path": f.name, "rfilename": f.name, "oid": "0", "size": f.stat().st_size}
                     for f in folder.glob("*")]  # fmt: skip
            body = json.dumps(files if "tree" in parts else {"id": "", "sha": COMMIT, "siblings": files}).encode()
            if not folder.is_dir():
                status, headers = 404, {"X-Error-Code": "RepoNotFound"}
        elif kind != "api":
            body = (ROOT / kind / parts[0] / parts[-1]).read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self.send_response(status)
        for key, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        return body

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # The package reads these when it is imported.
    os.environ |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_XET": "1",
                   "HF_HUB_OFFLINE": "0", "HF_HOME": str(ROOT / ".cache"), "NO_PROXY": "127.0.0.1"}  # fmt: skip
    from electra_lab.pretrained.hugging_face import locate, read_tensors
    from registry.errors import DataError

    for name in sys.argv[2:]:
        try:
            folder = locate(name)
            print(*sorted(file.name for file in folder.iterdir()), len(read_tensors(folder)))
        except DataError as error:
            print(error)
