"""HTML as Markdown: headings, paragraphs, lists, tables, code and links."""

import codecs
import html as html_entities
import re
from typing import Final

from html_to_markdown import ConversionOptions, convert

from mnemesh_files.parsers.document import REPLACEMENT, Budget, Cause, DocumentKind, DocumentUnreadable, ParsedDocument
from mnemesh_files.parsers.formats import NotText, decode

_HEAD: Final = 65_536
_CHARSET: Final = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_XML_ENCODING: Final = re.compile(rb"""\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})""")
_TITLE: Final = re.compile(r"<title[^>]{0,200}>([^<]{1,1000})</title", re.IGNORECASE)
_IMAGE: Final = re.compile(r"!\[([^\]\n]*)\]\((<?data:[^)\n]*|[^)\n]*)\)")
_HEADING: Final = re.compile(r"^#{1,2} +(\S[^\n]{0,299})$", re.MULTILINE)
_CONTROL: Final = re.compile("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")
_BLANK_LINES: Final = re.compile(r"\n(?:[ \t]*\n){2,}")
_NO_WRAP: Final = 1_000_000_000
_OPTIONS: Final = ConversionOptions(
    heading_style="atx",
    bullets="-",
    autolinks=False,
    compact_tables=True,
    extract_metadata=False,
    newline_style="spaces",
    wrap=True,  # joins the lines of a paragraph, whose ends in the source mean nothing
    wrap_width=_NO_WRAP,
)


def parse(content: bytes, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of an HTML file.

    Raises:
        DocumentUnreadable: It is not text, or nested too deeply.
    """
    source, encoding = _source(content, budget)
    text = budget.builder()
    text.add_all(markdown_lines(source, budget))
    budget.warn_if_full(text)
    title = title_of(source)
    joined = text.text()
    if not title and (heading := _HEADING.search(joined[:_HEAD])):
        title = heading[1]
    return ParsedDocument(DocumentKind.PROSE, media_type, joined, title=title, encoding=encoding)


def markdown_lines(source: str, budget: Budget) -> list[str]:
    """Returns the Markdown of an HTML text.

    Raises:
        DocumentUnreadable: It is nested too deeply.
    """
    result = convert(_CONTROL.sub(REPLACEMENT, source), _OPTIONS)
    markdown = _IMAGE.sub(_image, result.content or "")
    if result.warnings:
        if not markdown.strip():
            raise DocumentUnreadable(
                Cause.TOO_LARGE, "The document is nested too deeply. Save it again in a simpler form."
            )
        budget.warn("Parts that are nested too deeply were left out.")
    return _BLANK_LINES.sub("\n\n", markdown).strip("\n").split("\n")


def _image(found: re.Match[str]) -> str:
    """Returns an image with its description, without its bytes; nothing without a description."""
    description, target = found.groups()
    if not description:
        return ""
    return f"![{description}]" if not target or target.lstrip("<").startswith("data:") else found[0]


def title_of(source: str) -> str:
    """Returns the title of an HTML text; "" if it has none."""
    found = _TITLE.search(source[:_HEAD])
    return " ".join(html_entities.unescape(found[1]).split())[:300] if found else ""


def _source(content: bytes, budget: Budget) -> tuple[str, str]:
    """Returns the characters of an HTML file and their encoding: as it declares, or as other text files."""
    declared = _XML_ENCODING.match(content[:_HEAD]) or _CHARSET.search(content[:_HEAD])
    marked = content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if declared is not None and not marked:
        try:
            encoding = codecs.lookup(declared[1].decode("ascii")).name
            encoding = "cp1252" if encoding in ("iso8859-1", "ascii") else encoding  # as browsers read it
            return content.decode(encoding), encoding
        except (LookupError, ValueError):
            pass
    try:
        decoded = decode(content)
    except NotText:
        raise DocumentUnreadable(
            Cause.UNSUPPORTED, "The file is named as HTML and is not text. Upload it with its own extension."
        ) from None
    budget.warnings.extend(decoded.warnings)
    return decoded.text, decoded.encoding
