"""Pages of the web: what is read of each kind of document, in parts, and what is refused."""

import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from mnemesh.tools.v1 import web_service_pb2 as pb
from mnemesh_kit.errors import MnemeshError
from mnemesh_testkit.errors import catch_refusal
from mnemesh_tools.config import Config

from ..conftest import Stubs, serve

ARTICLE = """<!DOCTYPE html><html><head><title>Bees | Daily</title><meta property="og:title" content="How bees see">
<meta property="article:published_time" content="2026-03-04T10:00:00+01:00"><style>p {color: red}</style></head><body>
<nav><a href="/">Home</a><a href="/login">Log in</a></nav><main><h1>How bees see</h1>
<p>Bees see <a href="../uv">ultraviolet</a> light.</p><ul><li>yellow</li><li>blue</li></ul>
<table><tr><th>Colour</th><th>Visits</th></tr><tr><td>yellow</td><td>5210</td></tr></table>
<pre><code>def visits():
    return 1</code></pre><script>alert("no")</script></main><footer>Terms</footer></body></html>"""
LINKS = "<html><head><title>News</title></head><body><h1>News</h1><ul>{}</ul></body></html>".format(
    "".join(f'<li><a href="/{n}">Story {n}</a></li>' for n in range(50))
)
DEEP = "<html><body>" + "<div>" * 3000 + "the middle" + "</div>" * 3000 + "</body></html>"


def pdf(text: str) -> bytes:
    """Returns a document of one page."""
    stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 4 0 R >> >> /Contents 5 0 R /MediaBox [0 0 9 9] >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Title (A paper) /CreationDate (D:20260304100000Z) >>",
    ]
    body = b"%PDF-1.4\n"
    offsets = []
    for number, each in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    trailer = b"trailer << /Size 7 /Root 1 0 R /Info 6 0 R >>\nstartxref\n%d\n%%%%EOF" % len(body)
    return body + b"xref\n0 7\n0000000000 65535 f \n" + table + trailer


DOCUMENTS: dict[str, tuple[str, bytes]] = {
    "/article": ("text/html", ARTICLE.encode()),
    "/links": ("text/html; charset=utf-8", LINKS.encode()),
    "/deep": ("text/html", DEEP.encode()),
    "/empty": ("text/html", b""),
    "/latin": ("text/html; charset=iso-8859-1", "<html><body><p>caf\xe9</p></body></html>".encode("latin-1")),
    "/meta": (
        "text/html",
        '<html><head><meta charset="windows-1252"></head><body>\x80uro</body></html>'.encode("latin-1"),
    ),
    "/codec": ("text/html; charset=punycode", b"<html><body><p>plain</p></body></html>"),
    "/utf16": ("text/plain", "\ufeffwide".encode("utf-16-le")),
    "/text": ("text/plain", "".join(f"line {n}\n" for n in range(5000)).encode()),
    "/json": ("application/json", b'{"a": 1}'),
    "/untyped": ("", b"<!DOCTYPE html><html><body><p>found</p></body></html>"),
    "/pdf": ("application/pdf", pdf("A study of bees")),
    "/broken.pdf": ("application/pdf", b"%PDF-1.4 nothing"),
    "/image": ("image/png", b"\x89PNG\r\n"),
    "/large": ("text/plain", b"x" * (6 << 20)),
    "/bomb": ("text/html", gzip.compress(b"<p>" * (20 << 20))),
}


class Site(BaseHTTPRequestHandler):
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/article")
            self.end_headers()
            return
        kind, body = DOCUMENTS.get(self.path, ("text/html", b""))
        self.send_response(200 if self.path in DOCUMENTS else 404)
        if kind:
            self.send_header("Content-Type", kind)
        if self.path == "/bomb":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):  # the service has read enough
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    Site.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stubs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stubs]:
    data = str(tmp_path_factory.mktemp("tools"))
    config = Config(port=0, data_dir=data, min_sandbox="minimal", private_networks="127.0.0.0/8")
    async with serve(config) as stubs:
        yield stubs


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def fetch(stubs: Stubs, url: str, **options: int) -> pb.FetchWebpageResponse:
    return await stubs.web.FetchWebpage(pb.FetchWebpageRequest(url=url, **options))


async def refusal(stubs: Stubs, url: str, **options: int) -> MnemeshError:
    return await catch_refusal(fetch(stubs, url, **options))


async def test_article_becomes_markdown(stubs: Stubs, site: str) -> None:
    page = await fetch(stubs, f"{site}/moved")
    assert (page.url, page.title, page.media_type) == (f"{site}/article", "How bees see", "text/html")
    assert page.published_time.ToJsonString() == "2026-03-04T09:00:00Z"
    assert page.text.startswith("# How bees see\n\nBees see [ultraviolet](")
    for part in (f"({site}/uv)", "- yellow\n- blue", "| Colour | Visits |", "def visits():\n    return 1"):
        assert part in page.text, part
    for part in ("Log in", "Terms", "alert", "color"):
        assert part not in page.text, part


async def test_pdf_in_the_sandbox(stubs: Stubs, site: str) -> None:
    page = await fetch(stubs, f"{site}/pdf")
    assert (page.title, page.published_time.ToJsonString()) == ("A paper", "2026-03-04T00:00:00Z")
    assert (page.text, page.total_chars) == ("## Page 1\n\nA study of bees", 26)


async def test_long_text_in_parts_of_one_version(stubs: Stubs, site: str) -> None:
    part = await fetch(stubs, f"{site}/text", max_chars=1000)
    before = Site.requests.count("/text")
    found = part.text
    while len(found) < part.total_chars:
        part = await fetch(stubs, f"{site}/text", start=len(found), max_chars=20_000)
        assert part.start == len(found)
        assert part.text.endswith("\n") or len(found + part.text) == part.total_chars
        found += part.text
    assert found == DOCUMENTS["/text"][1].decode().strip()
    assert Site.requests.count("/text") == before
    assert (await refusal(stubs, f"{site}/text", start=len(found))).field == "start"


@pytest.mark.parametrize(
    ("path", "reason", "part"),
    [
        ("/missing", "WEB_PAGE_UNREADABLE", "status 404"),
        ("/image", "WEB_PAGE_UNREADABLE", "image/png"),
        ("/large", "WEB_PAGE_UNREADABLE", "larger than 5 MB"),
        ("/bomb", "WEB_PAGE_UNREADABLE", "larger than 5 MB"),
        ("/broken.pdf", "WEB_PAGE_UNREADABLE", "broken"),
    ],
)
async def test_documents_without_text(stubs: Stubs, site: str, path: str, reason: str, part: str) -> None:
    error = await refusal(stubs, site + path)
    assert (error.reason, error.code) == (reason, grpc.StatusCode.FAILED_PRECONDITION)
    assert part in error.message
    assert error.metadata["url"] == site + path


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://[::1]/", "ftp://a.example/", "http://a:b@127.0.0.1/", "x"])
async def test_urls_that_are_refused(stubs: Stubs, url: str) -> None:
    assert (await refusal(stubs, url)).reason == "WEB_PAGE_REFUSED"


@pytest.mark.parametrize(
    ("options", "field"), [({"start": -1}, "start"), ({"max_chars": 100_001}, "max_chars"), ({}, "url")]
)
async def test_invalid_requests(stubs: Stubs, site: str, options: dict[str, int], field: str) -> None:
    assert (await refusal(stubs, f"{site}/article" if options else " ", **options)).field == field


async def test_document_that_is_too_expensive_to_read(stubs: Stubs, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is killed, and the service goes on."""
    DOCUMENTS["/memory"] = ("text/html", b"<table>" * 1_200_000 + b"<a href=x>y</a>" * 10_000)
    error = await refusal(stubs, f"{site}/memory")
    assert error.reason == "WEB_PAGE_UNREADABLE", error
    assert (await fetch(stubs, f"{site}/json")).text


async def test_empty_page_has_an_empty_text(stubs: Stubs, site: str) -> None:
    assert (await fetch(stubs, f"{site}/empty")).text == ""


async def test_without_network(tmp_path: Path) -> None:
    config = Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", network="none", warm_processes=0)
    async with serve(config) as stubs:
        error = await refusal(stubs, "http://a.example/")
    assert (error.reason, "MNEMESH_TOOLS_NETWORK" in error.message) == ("WEB_PAGE_REFUSED", True)
