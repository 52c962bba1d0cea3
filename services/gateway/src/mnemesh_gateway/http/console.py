"""The console: the files of a web page that shows agents, their memory and their runs.

The files are those that `make console` builds. They are public: the page asks for a token if its calls need one.
"""

import asyncio
import gzip
import hashlib
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mnemesh_kit.errors import NotFound
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mnemesh_gateway.errors import MethodNotAllowed

CONSOLE_PATH: Final = "/console"
REDIRECTS: Final = {"/": "console/", CONSOLE_PATH: "console/"}
"""The paths that lead to the page. The targets are relative, so that a proxy may serve the gateway under a prefix."""
FILES: Final = Path(__file__).parent.parent / "console"
MANIFEST: Final = "manifest.json"
_PAGE: Final = "index.html"
_ASSETS: Final = "assets/"
"""The folder of files whose names have a hash of their content."""
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    # Nothing from elsewhere, and no inline script: what a model or a tool wrote cannot become code.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}
_MESSAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} - mnemesh</title>
<link rel="icon" href="{root}console/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{root}console/message.css">
<main><h1>{title}</h1><p>{text}</p></main>
</html>
"""


def message_page(path: str, title: str, text: str, *, status: int = 200) -> Response:
    """Returns a page with a message for a person whose browser another site sent to a path of the gateway.

    Args:
        path: the path of the request; the page names its style relative to it, for proxies with a prefix.
        title: what happened.
        text: what to do now. It may be of another server: it becomes one line of visible characters.
        status: of HTTP.
    """
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    root = "../" * (path.count("/") - 1)
    page = _MESSAGE.format(title=html.escape(title), text=html.escape(shown), root=root)
    headers = {**_HEADERS, "Vary": "Accept", "Cache-Control": "no-store"}
    return Response(page, status_code=status, headers=headers, media_type="text/html")


def is_console(path: str) -> bool:
    return path in REDIRECTS or path.startswith(f"{CONSOLE_PATH}/")


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes
    kind: str
    etag: str
    cache: str


class ConsoleApp:
    """Serves the page. Its files are read with the first request for one."""

    def __init__(self) -> None:
        self._files: dict[str, _File] | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request.

        Raises:
            MethodNotAllowed: the HTTP method is neither GET nor HEAD.
            NotFound: the page has no such file.
        """
        path = scope["path"]
        if scope["method"] not in {"GET", "HEAD"}:
            raise MethodNotAllowed(f"{path[:200]} does not take {scope['method']}. Send a GET request.")
        if path in REDIRECTS:
            response = Response(status_code=307, headers={"Location": REDIRECTS[path], "Cache-Control": "no-cache"})
            await response(scope, receive, send)
            return
        async with self._lock:
            if self._files is None:
                self._files = await asyncio.to_thread(_read)
            files = self._files
        name = path.removeprefix(f"{CONSOLE_PATH}/") or _PAGE
        found = files.get(name)
        if found is None:
            raise NotFound(f"The console has no {name[:200]}. Its page is {CONSOLE_PATH}/.", code="unknown_url")
        await _response(found, Headers(scope=scope), is_head=scope["method"] == "HEAD")(scope, receive, send)


def _response(file: _File, request: Headers, *, is_head: bool) -> Response:
    headers = {**_HEADERS, "ETag": file.etag, "Cache-Control": file.cache}
    if file.etag in (tag.strip().removeprefix("W/") for tag in request.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    is_gzip = "gzip" in request.get("accept-encoding", "")
    if is_gzip:
        headers["Content-Encoding"] = "gzip"
    content = file.compressed if is_gzip else file.content
    headers |= {"Content-Length": str(len(content)), "Content-Type": file.kind}
    return Response(b"" if is_head else content, headers=headers)


def _read() -> dict[str, _File]:
    """Returns the files by their path below the page."""
    found = {}
    for path in FILES.rglob("*"):
        name = path.relative_to(FILES).as_posix()
        if not path.is_file() or name == MANIFEST:
            continue
        content = path.read_bytes()
        cache = "public, max-age=31536000, immutable" if name.startswith(_ASSETS) else "no-cache"
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        found[name] = _File(content, gzip.compress(content, mtime=0), _TYPES[path.suffix], etag, cache)
    return found
