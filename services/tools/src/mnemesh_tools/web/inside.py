"""Reads a downloaded document. This source runs in the sandbox, because nobody trusts the document.

It imports only the standard library at its top; the libraries are those that the service makes available.
"""

import base64
import codecs
import json
import re
from contextlib import suppress
from typing import Any

FULL_BYTES = 1_500_000
"""The main part of a larger page is not looked for, which takes time: its whole body is read."""
MAIN_SHARE = 0.3
"""The main part of a page has at least this share of its text."""
_NOISE = "script|style|noscript|template|svg|iframe|object|canvas|nav|footer|form|dialog|button|select"
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_TITLES = ("//meta[@property='og:title']/@content", "//head/title/text()", "//title/text()", "//h1//text()")
_DATES = (
    "//meta[@property='article:published_time']/@content",
    "//meta[@name='date' or @name='dc.date' or @itemprop='datePublished']/@content",
    "//time[@datetime]/@datetime",
)


def read_page(kind: str, data: str, charset: str | None, url: str, limit: int) -> str:
    """Returns a JSON list: the title, the text, the date of publication ("" if unknown), and whether the text was cut.

    Args:
        kind: "html", "pdf" or "text".
        data: The document in Base64.
        charset: The character encoding that its server names.
        url: Its URL, with which links are completed.
        limit: The most characters of the text.
    """
    raw = base64.b64decode(data)
    title = text = date = ""
    if kind == "pdf":
        title, text, date = _pdf(raw, limit)
    elif kind == "html":
        title, text, date = _html(_decoded(raw, charset), url)
    else:
        text = _decoded(raw, charset)
    text = re.sub(r"\n{3,}", "\n\n", text.replace("\r\n", "\n")).strip()
    return json.dumps([" ".join(title.split())[:500], text[:limit], date[:40], len(text) > limit], ensure_ascii=False)


def _decoded(raw: bytes, charset: str | None) -> str:
    for bom, name in _BOMS:
        if raw.startswith(bom):
            return raw.decode(name, "replace")
    declared = _META_CHARSET.search(raw[:4096])
    for encoding in (charset, "utf-8", None if declared is None else declared[1].decode()):
        if encoding is not None:
            try:
                return raw.decode(encoding)
            except (LookupError, ValueError):
                continue
    return raw.decode("cp1252", "replace")


def _pdf(raw: bytes, limit: int) -> tuple[str, str, str]:
    import pypdfium2  # noqa: PLC0415

    document = pypdfium2.PdfDocument(raw)
    pages: list[str] = []
    length = 0
    for number in range(len(document)):
        text = document[number].get_textpage().get_text_range()
        pages.append(f"## Page {number + 1}\n\n{text.strip()}")
        length += len(text)
        if length > limit:
            break
    found = document.get_metadata_dict()
    date = re.match(r"D:(\d{4})(\d{2})(\d{2})", found.get("CreationDate", ""))
    return found.get("Title", ""), "\n\n".join(pages), "-".join(date.groups()) if date else ""


def _html(text: str, url: str) -> tuple[str, str, str]:
    import lxml.etree  # noqa: PLC0415
    import lxml.html  # noqa: PLC0415

    # The declaration of an encoding does not fit text that is decoded already.
    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True)
    try:
        document = lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except lxml.etree.ParserError:  # there is no element in it
        return "", "", ""
    title, date = _first(document, _TITLES), _first(document, _DATES)
    with suppress(ValueError):  # the page names a base that is not a URL: its links stay as they are
        document.make_links_absolute(url, resolve_base_href=True, handle_failures="ignore")
    large = len(text) > FULL_BYTES
    main = None if large else _main(document)
    body = document.find("body")
    for element in list(document.xpath("|".join(f"//{name}" for name in _NOISE.split("|")))):
        if element.getparent() is not None:
            element.drop_tree()
    whole = body if body is not None else document
    return title, _markdown(whole if main is None else main), date


def _main(document: Any) -> Any:
    """Returns the main part of a page; None if there is none that has enough of the text."""
    import lxml.html  # noqa: PLC0415
    from readability import Document  # noqa: PLC0415

    enough = MAIN_SHARE * _length(document)
    marked = document.xpath("//main | //*[@role='main']") or document.xpath("//article")
    if len(marked) == 1 and _length(marked[0]) >= enough:
        return marked[0]
    try:
        found = lxml.html.fromstring(Document(lxml.html.tostring(document, encoding="unicode")).summary())
    except Exception:
        return None
    return found if _length(found) >= enough else None


def _length(element: Any) -> int:
    """Returns the number of letters that a reader of an element sees."""
    hidden = "ancestor::script or ancestor::style or ancestor::noscript or ancestor::template"
    return sum(len(text.strip()) for text in element.xpath(f".//text()[not({hidden})]"))


def _markdown(element: Any) -> str:
    import lxml.html  # noqa: PLC0415
    from html_to_markdown import ConversionOptions, convert  # noqa: PLC0415

    options = ConversionOptions(
        heading_style="atx",
        bullets="-",
        autolinks=False,
        compact_tables=True,
        extract_metadata=False,
        newline_style="spaces",
        strip_tags=["img"],
    )
    found = convert(lxml.html.tostring(element, encoding="unicode"), options).content
    if found and found.strip():
        return found
    # Elements within elements, thousands of levels deep.
    return "\n".join(text.strip() for text in element.itertext() if text.strip())


def _first(document: Any, paths: tuple[str, ...]) -> str:
    for path in paths:
        for found in document.xpath(path):
            if found.strip():
                return str(found).strip()
    return ""
