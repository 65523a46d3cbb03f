"""A stand-in for the Hugging Face hub on this machine, with the parts that pushes and downloads need, and a log of its
requests.

Files of .safetensors are large (LFS): they go to another address, whose requests must carry no token.
"""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "hf_secretsecretsecret"


@dataclass
class Repository:
    private: bool
    heads: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    trees: dict[str, dict[str, Any]] = field(default_factory=lambda: {"main": {}})  # by branch, contents or oids


class Hub(ThreadingHTTPServer):
    """Its repositories and large objects, the requests, and the simulated failures by the beginning of a request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.tokens_at_storage: list[str | None] = []
        self.broken: dict[str, int] = {}  # `METHOD /path`: a status, or 0 to cut the connection
        self.meanwhile: str | None = None  # a branch that another writer changes before the next commit
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def said(self, word: str) -> list[str]:
        """Return the requests that contain this text."""
        return [request for request in self.requests if word in request]

    def handle_error(self, *_: object) -> None:
        """Ignore clients that have disconnected."""


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def _do(self) -> None:
        hub, request = self.server, f"{self.command} {unquote(self.path.partition('?')[0])}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.requests.append(request)
        for beginning, status in hub.broken.items():
            if request.startswith(beginning):
                return self.connection.close() if status == 0 else self._answer(status, {"error": "no"})
        parts = request.split(" ")[1].strip("/").split("/")
        if parts[2:3] == ["resolve"]:
            return self._download(hub.repositories["/".join(parts[:2])], "/".join(parts[4:]))
        if parts[0] == "storage":
            hub.tokens_at_storage.append(self.headers.get("Authorization"))
            hub.objects[parts[1]] = body
            return self._answer(200, {})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "no token"})
        if parts[-1] == "batch":
            return self._answer(200, self._batch(json.loads(body)))
        if parts[:2] == ["api", "validate-yaml"]:
            return self._answer(200, {"errors": [], "warnings": []})
        if parts[:3] == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        name = "/".join(parts[2:4])
        if name not in hub.repositories:
            return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        return self._of_repository(hub.repositories[name], parts[4:], body)

    def _of_repository(self, repository: Repository, parts: list[str], body: bytes) -> None:
        if not parts or parts[0] == "revision":
            head = repository.heads[parts[1] if parts else "main"]
            return self._answer(200, {"id": "", "sha": head, "private": repository.private, "siblings": []})
        if parts[0] == "tree":
            tree = repository.trees["main"].items()
            return self._answer(200, [{"type": "file", "path": n, "oid": "0", "size": len(held)} for n, held in tree])
        if parts[0] == "refs":
            heads = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in repository.heads.items()]
            return self._answer(200, {"branches": heads, "converts": [], "tags": []})
        if parts[0] == "branch":
            repository.heads[parts[1]] = repository.heads["main"]
            repository.trees[parts[1]] = dict(repository.trees["main"])
            return self._answer(200, {})
        if parts[1] not in repository.heads:
            return self._answer(404, {"error": "no branch"}, {"X-Error-Code": "RevisionNotFound"})
        if parts[0] == "preupload":
            modes = [self._mode(repository.trees[parts[1]], file) for file in json.loads(body)["files"]]
            return self._answer(200, {"files": modes})
        return self._commit(repository, parts[1], [json.loads(line) for line in body.decode().splitlines()])

    def _mode(self, tree: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
        mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
        known = tree.get(file["path"])
        if isinstance(known, bytes):
            known = hashlib.sha1(b"blob %d\0" % len(known) + known).hexdigest()
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": known}

    def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        objects = []
        for file in asked["objects"]:
            upload = {"upload": {"href": f"{self.server.url}/storage/{file['oid']}"}}
            objects.append(file | ({} if file["oid"] in self.server.objects else {"actions": upload}))
        return {"transfer": "basic", "objects": objects}

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization', 'me')}/{asked['name']}"
        there = name in self.server.repositories
        if not there:
            self.server.repositories[name] = Repository(asked.get("private", asked.get("visibility") == "private"))
        self._answer(409 if there else 200, {"url": f"{self.server.url}/{name}", "id": name})

    def _commit(self, repository: Repository, branch: str, lines: list[dict[str, Any]]) -> None:
        if self.server.meanwhile == branch:
            repository.heads[branch] = "f" * 40
        if lines[0]["value"].get("parentCommit") != repository.heads[branch]:
            return self._answer(412, {"error": "stale"})
        for line in lines[1:]:
            value = line["value"]
            content = base64.b64decode(value["content"]) if line["key"] == "file" else value["oid"]
            repository.trees[branch][value["path"]] = content
        head = hashlib.sha1(json.dumps(lines).encode() + repository.heads[branch].encode()).hexdigest()
        repository.heads[branch] = head
        return self._answer(200, {"commitUrl": f"{self.server.url}/c/{head}", "commitOid": head, "success": True})

    def _download(self, repository: Repository, name: str) -> None:
        content = repository.trees["main"][name]
        etag = hashlib.sha256(content).hexdigest()
        self._answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": repository.heads["main"]})

    def _answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        usual = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.send_response(status)
        for key, held in {**(headers or {}), **usual}.items():
            self.send_header(key, held)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_HEAD = _do  # noqa: N815 - the server's own names

    def log_message(self, *_: object) -> None:
        pass
