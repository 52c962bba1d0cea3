"""Downloads a page under the rules of egress, and reads it in the sandbox."""

import base64
import importlib.util
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from mnemesh_sandbox import Access, Outcome, OutcomeStatus, Sandbox, Task
from mnemesh_sandbox.egress.downloads import Downloader, DownloadFailed, DownloadLimits, Problem
from mnemesh_sandbox.egress.policy import NetworkConnection, Resolve
from mnemesh_sandbox.task import clean

from mnemesh_tools.errors import WebPageRefused, WebPageUnreadable
from mnemesh_tools.model.web import MAX_PAGE_CHARS, WebPage, moment
from mnemesh_tools.web import inside

LIMITS: Final = DownloadLimits(max_bytes=5 * 1024 * 1024, seconds=30.0, redirects=5)
_READ_SECONDS: Final = 20.0
_ACCEPT: Final = "text/html, application/xhtml+xml, application/pdf, text/*;q=0.9, application/json;q=0.9, */*;q=0.5"
_FUNCTION: Final = "read_page"
_LIBRARIES: Final = ("lxml", "readability", "html_to_markdown", "pypdfium2", "pypdfium2_raw")
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXTS: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/javascript", "application/x-ndjson"}
)
_HEAD: Final = 1024


class PageReader:
    """Turns a URL into text."""

    def __init__(self, downloader: Downloader, sandbox: Sandbox) -> None:
        self._downloader = downloader
        self._sandbox = sandbox
        self._source = Path(inside.__file__).read_text(encoding="utf-8")
        self._access = Access(packages=_directories())

    async def download(
        self, url: str, resolve: Resolve, ended: Callable[[NetworkConnection], None]
    ) -> tuple[WebPage, bytes, str | None]:
        """Returns a page without its text, and the document with the character encoding that its server names.

        Raises:
            WebPageRefused: The URL, or one to which it redirects, may not be fetched.
            WebPageUnreadable: The server does not answer with a document that can be read.
        """
        try:
            async with self._downloader.open(url, resolve, LIMITS, accept=_ACCEPT, ended=ended) as found:
                raw = await found.read()
                return WebPage(url=found.url, media_type=found.media_type), raw, found.charset
        except DownloadFailed as failed:
            if failed.problem is Problem.REFUSED:
                raise WebPageRefused(str(failed), url) from failed
            raise WebPageUnreadable(str(failed), url, failed.status) from failed

    async def read(self, page: WebPage, raw: bytes, charset: str | None, slot: AsyncExitStack | None = None) -> WebPage:
        """Returns a page with the text of its document.

        Args:
            page: The page as it was downloaded.
            raw: Its content.
            charset: The character set that its server names.
            slot: What the reading holds; see `Sandbox.run`.

        Raises:
            WebPageUnreadable: The document is of a type without text, or cannot be read within the limits.
            SandboxUnavailable: This host cannot isolate the reader.
        """
        kind = _kind(page.media_type, raw)
        if kind is None:
            text = f"{page.url} is of the type {page.media_type or 'unknown'}, which has no text."
            raise WebPageUnreadable(text, page.url)
        arguments = {
            "kind": kind,
            "data": base64.b64encode(raw).decode(),
            "charset": charset,
            "url": page.url,
            "limit": MAX_PAGE_CHARS,
        }
        task = Task(self._source, _FUNCTION, arguments)
        outcome = await self._sandbox.run(task, _READ_SECONDS, self._access, slot)
        return _read(page, outcome)


def _read(page: WebPage, outcome: Outcome) -> WebPage:
    values: Any = None
    if outcome.status is OutcomeStatus.SUCCESS:
        with suppress(ValueError, RecursionError):  # a document took over its reader
            values = json.loads(outcome.text)
    match values:
        case [str(title), str(text), str(date), bool(truncated)]:
            return WebPage(
                url=page.url,
                media_type=page.media_type,
                title=clean(title)[:500],
                text=clean(text)[:MAX_PAGE_CHARS],
                published_at=moment(date),
                truncated=truncated,
            )
    if outcome.status in (OutcomeStatus.TIMED_OUT, OutcomeStatus.KILLED):
        raise WebPageUnreadable(f"{page.url} takes more time or memory to read than a page may.", page.url)
    raise WebPageUnreadable(f"{page.url} is broken: no text can be read from it.", page.url)


def _kind(media_type: str, raw: bytes) -> str | None:
    """Returns how to read a document, by its content and by what its server says; None if it has no text."""
    head = raw[:_HEAD].lstrip().lower()
    if head.startswith(b"%pdf-"):
        return "pdf"
    if media_type in _HTML or (
        media_type in ("", "application/octet-stream") and head.startswith((b"<!doc", b"<html"))
    ):
        return "html"
    is_text = media_type.startswith("text/") or media_type in _TEXTS or media_type.endswith(("+json", "+xml"))
    if media_type == "":
        is_text = b"\0" not in head
    return "text" if is_text else None


@cache
def _directories() -> tuple[str, ...]:
    """Returns the directories of the libraries that the reader imports. The service itself does not import them."""
    found: set[str] = set()
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found.add(str(Path(spec.origin).resolve().parents[1]))
    return tuple(sorted(found))
