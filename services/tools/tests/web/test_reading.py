"""The reader of documents, without its sandbox."""

import base64
import json

import pytest
from mnemesh_tools.web.inside import read_page

ADDRESS = "http://a.example/b/c"
LINKS = "".join(f'<li><a href="/{n}">Story {n}</a></li>' for n in range(50))


def read(document: str | bytes, kind: str = "html", charset: str | None = None, limit: int = 100_000) -> list[object]:
    raw = document.encode() if isinstance(document, str) else document
    found: list[object] = json.loads(read_page(kind, base64.b64encode(raw).decode(), charset, ADDRESS, limit))
    return found


def html(body: str, head: str = "") -> str:
    return f"<html><head>{head}</head><body>{body}</body></html>"


@pytest.mark.parametrize(
    ("document", "kind", "charset", "part"),
    [
        (html(f"<h1>News</h1><ul>{LINKS}</ul>"), "html", None, "- [Story 49](http://a.example/49)"),
        (html("<div>" * 1000 + "the middle" + "</div>" * 1000), "html", None, "the middle"),
        (html("<p>caf\xe9</p>").encode("latin-1"), "html", "iso-8859-1", "café"),
        (html("\x80uro", '<meta charset="windows-1252">').encode("latin-1"), "html", None, "€uro"),
        (html("caf\xe9").encode("latin-1"), "html", None, "café"),
        (html("plain"), "html", "no-charset", "plain"),
        (html("plain"), "html", "zlib", "plain"),
        ("\ufeffwide".encode("utf-16-le"), "text", None, "wide"),
        (
            html('<a href="x">link</a>', '<base href="http://b.example/d/">'),
            "html",
            None,
            "[link](http://b.example/d/x)",
        ),
        (html('<a href="x">link</a>', '<base href="http://[">'), "html", None, "[link]("),
        (html("<p>a_b * c</p>"), "html", None, "a_b * c"),
        ("<?xml version='1.0' encoding='utf-7'?><html><body>declared</body></html>", "html", None, "declared"),
        ("no tags at all", "html", None, "no tags at all"),
        (html('<img src="data:,x" alt="x"><p>text</p>'), "html", None, "text"),
    ],
)
def test_documents(document: str | bytes, kind: str, charset: str | None, part: str) -> None:
    assert part in str(read(document, kind, charset)[1])


def test_repeated_parts_and_headings_stay() -> None:
    """A page of documentation without a marked main part: nothing of it is left out."""
    sections = "".join(
        f'<h2 id="s{n}">Option {n}</h2><p>See <a href="#s">all</a>.</p><pre>run --all</pre>' for n in range(30)
    )
    text = str(read(html(f"<h1>Options</h1>{sections}"))[1])
    assert (text.count("## Option"), text.count("run --all")) == (30, 30)


@pytest.mark.parametrize(
    "document", ["", " ", "<html></html>", "<!-- only a comment -->", "\0", "<html><body><script>x()</script>"]
)
def test_documents_without_text(document: str) -> None:
    assert str(read(document)[1]).strip("\0\ufffd") == ""


def test_long_document_is_cut() -> None:
    assert read("0123456789", "text", limit=4) == ["", "0123", "", True]
