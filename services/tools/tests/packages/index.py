"""A package index on the loopback interface, with wheels that tests make."""

import base64
import hashlib
import io
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class PackageIndex:
    """Serves the files that were added (PEP 503)."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""
    hang: threading.Event = field(default_factory=threading.Event)
    """Set: requests are answered. Clear: they wait."""
    pages: dict[str, bytes] = field(default_factory=dict)
    """Answers by path, in place of the index's own."""
    drips: set[str] = field(default_factory=set)
    """Paths that are answered with a byte each tenth of a second, without an end."""
    hashes: dict[str, str] = field(default_factory=dict)
    """The hashes that the index names for files, in place of the real ones."""

    def add(self, name: str, version: str, source: str, *, requires: tuple[str, ...] = ()) -> None:
        """Adds a wheel with one module."""
        self.files.setdefault(name, {})[f"{name}-{version}-py3-none-any.whl"] = wheel(name, version, source, requires)

    def add_wheel(self, name: str, files: Mapping[str, str | bytes], *, links: Mapping[str, str] | None = None) -> None:
        """Adds a wheel, version 1.0, with these files and symbolic links."""
        archive = wheel_of(name, "1.0", files, (), links or {})
        self.files.setdefault(name, {})[f"{name}-1.0-py3-none-any.whl"] = archive

    def add_source(self, name: str, version: str, setup: str, files: Mapping[str, str] | None = None) -> None:
        """Adds a source distribution with a setup.py, or with other files, whose code a build executes."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            own = {"PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
            for path, text in {**own, **({"setup.py": setup} if files is None else files)}.items():
                info = tarfile.TarInfo(f"{name}-{version}/{path}")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
        self.files.setdefault(name, {})[f"{name}-{version}.tar.gz"] = data.getvalue()


def wheel(name: str, version: str, source: str, requires: tuple[str, ...] = ()) -> bytes:
    """Returns a wheel with one module."""
    return wheel_of(name, version, {f"{name}/__init__.py": source}, requires, {})


def wheel_of(
    name: str,
    version: str,
    content: Mapping[str, str | bytes],
    requires: tuple[str, ...],
    links: Mapping[str, str],
) -> bytes:
    """Returns a wheel with these files and symbolic links."""
    info = f"{name}-{version}.dist-info"
    metadata = "\n".join(
        [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {item}" for item in requires),
        ]
    )
    files: dict[str, str | bytes] = {
        **content,
        f"{info}/METADATA": f"{metadata}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(_bytes(text))}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        for path, target in links.items():
            entry = zipfile.ZipInfo(path)
            entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
    return data.getvalue()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _digest(content: str | bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(_bytes(content)).digest()).rstrip(b"=").decode()


@contextmanager
def serving() -> Iterator[PackageIndex]:
    """Serves an index on a free port."""
    index = PackageIndex()
    index.hang.set()
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            index.hang.wait(10)
            parts = [part for part in self.path.split("/") if part]
            body, kind = None, "text/html"
            if self.path in index.drips:
                self.drip()
                return
            if self.path in index.pages:
                body = index.pages[self.path]
            elif parts[:1] == ["simple"] and len(parts) == 2 and parts[1] in index.files:
                links = "".join(
                    f'<a href="/files/{parts[1]}/{file}#sha256={index.hashes.get(file) or _hash(data)}">{file}</a>'
                    for file, data in index.files[parts[1]].items()
                )
                body = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
            elif parts[:1] == ["files"] and len(parts) == 3:
                body, kind = index.files[parts[1]][parts[2]], "application/octet-stream"
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                with suppress(ConnectionError):  # the client has what it wanted, or was stopped
                    self.wfile.write(body or b"")

        def drip(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            with suppress(ConnectionError):
                while not stopping.wait(0.1):
                    self.wfile.write(b" ")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    try:
        yield index
    finally:
        index.hang.set()
        stopping.set()
        server.shutdown()
        server.server_close()
