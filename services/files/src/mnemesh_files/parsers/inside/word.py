"""Word documents (docx): paragraphs, headings, lists, tables, footnotes and comments as Markdown."""

import io

import mammoth

from mnemesh_files.parsers.document import Budget, DocumentKind, ParsedDocument
from mnemesh_files.parsers.inside.archive import Archive, damaged, element, text_of
from mnemesh_files.parsers.inside.html import markdown_lines

_STYLES = "comment-reference => sup\np[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => h2:fresh"


def parse(content: bytes, archive: Archive, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of a docx file.

    Raises:
        DocumentUnreadable: It is damaged, or nested too deeply.
    """
    if "word/document.xml" not in archive.names and not any(name.startswith("word/document") for name in archive.names):
        raise damaged("its main part is missing")
    result = mammoth.convert_to_html(
        io.BytesIO(content), style_map=_STYLES, convert_image=mammoth.images.img_element(_no_image), id_prefix="note-"
    )
    text = budget.builder()
    text.add_all(markdown_lines(result.value, budget))
    budget.warn_if_full(text)
    return ParsedDocument(DocumentKind.PROSE, media_type, text.text(), title=core_title(archive))


def core_title(archive: Archive) -> str:
    """Returns the title in the properties of an Office document; "" if there is none."""
    name = "docProps/core.xml"
    return text_of(element(archive.read(name)), "title")[:300] if name in archive.names else ""


def _no_image(_: object) -> dict[str, str]:
    return {"src": ""}
