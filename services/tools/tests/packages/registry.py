"""An npm registry on the loopback interface, with packages that tests make."""

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Registry:
    """Serves the packages that were added."""

    packages: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def add(self, name: str, version: str, source: str, **manifest: Any) -> None:
        """Adds a version of a package with one module."""
        fields = {"name": name, "version": version, "main": "index.js", **manifest}
        data = _archive({"package.json": json.dumps(fields), "index.js": source})
        path = f"/{name}/-/{version}.tgz"
        self.files[path] = data
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"
        fields["dist"] = {"tarball": f"{self.url}{path}", "integrity": integrity}
        found = self.packages.setdefault(name, {"name": name, "dist-tags": {}, "versions": {}})
        found["versions"][version] = fields
        found["dist-tags"]["latest"] = version


def _archive(files: Mapping[str, str]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(f"package/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


@contextmanager
def serving() -> Iterator[Registry]:
    """Serves a registry on a free port."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path)
            registry.requests.append(path)
            package = registry.packages.get(path.removeprefix("/"))
            body = registry.files.get(path) if package is None else json.dumps(package).encode()
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "application/octet-stream" if package is None else "application/json")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
