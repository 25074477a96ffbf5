"""Serves folders on loopback with the HTTP interface of the Hugging Face hub, and takes uploads.

Set HF_ENDPOINT to `LoopbackHub.endpoint` in a new process: huggingface_hub reads it on import.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "token-of-the-test"


class LoopbackHub:
    """Serves `root`/models/ORG/NAME and `root`/datasets/ORG/NAME; commits are hashes of content.

    Attributes:
      requests: "METHOD path" of each request so far.
    """

    def __init__(self, root: Path):
        self.root, self.requests = root, []
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "LoopbackHub":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def commit(self, kind: str, name: str) -> str:
        """Returns the hash of the content of a repository."""
        digest = hashlib.sha1()
        for file in self.files(kind, name):
            digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()

    def files(self, kind: str, name: str) -> list[Path]:
        """Returns the files of a repository."""
        return sorted(path for path in (self.root / kind / name).rglob("*") if path.is_file())


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")

    def _json(self, data: Any, status: int = 200, **headers: str) -> None:
        self._bytes(json.dumps(data).encode(), status, **headers)

    def _bytes(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _absent(self, code: str) -> None:
        self._json({"error": "not found"}, 404, X_Error_Code=code)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/(.+)", path)
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api:
            self._answer_api(*api.groups())
        elif file:
            kind = "datasets" if file[1] else "models"
            self._answer_file(kind, file[2], file[3], file[4])
        else:
            self._absent("RepoNotFound")

    do_HEAD = do_GET

    def _answer_api(self, kind: str, name: str, what: str, revision: str) -> None:
        if not (self.hub.root / kind / name).is_dir():
            return self._absent("RepoNotFound")
        commit = self.hub.commit(kind, name)
        if revision not in ("main", commit):
            return self._absent("RevisionNotFound")
        if what == "revision":
            return self._json({"id": name, "sha": commit, "siblings": []})
        folder = self.hub.root / kind / name
        entries = [
            {
                "type": "file",
                "path": str(path.relative_to(folder)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in self.hub.files(kind, name)
        ]
        return self._json(entries)

    def _answer_file(self, kind: str, name: str, revision: str, path: str) -> None:
        file = self.hub.root / kind / name / path
        if not file.is_file():
            return self._absent("EntryNotFound")
        content = file.read_bytes()
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        return self._bytes(content, ETag=etag, X_Repo_Commit=self.hub.commit(kind, name))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "unauthorized"}, 401)
        if self.path == "/api/repos/create":
            data = json.loads(body)
            name = "/".join(filter(None, (data.get("organization"), data["name"])))
            (self.hub.root / "models" / name).mkdir(parents=True, exist_ok=True)
            return self._json({"url": f"{self.hub.endpoint}/{name}", "id": name})
        if self.path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", self.path)
        if found is None:
            return self._absent("RepoNotFound")
        if found[2] == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        folder = self.hub.root / "models" / found[1]
        for line in body.decode().splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                file = folder / item["value"]["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(item["value"]["content"]))
        commit = self.hub.commit("models", found[1])
        url = f"{self.hub.endpoint}/{found[1]}/commit/{commit}"
        return self._json({"commitOid": commit, "commitUrl": url})
