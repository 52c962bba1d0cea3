"""Rich text (rtf): the text without its formatting."""

from typing import Final

from striprtf.striprtf import rtf_to_text

from mnemesh_files.parsers.document import Budget, DocumentKind, ParsedDocument
from mnemesh_files.parsers.inside.archive import damaged

_RTF: Final = b"{\\rtf"


def parse(content: bytes, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of an rtf file.

    Raises:
        DocumentUnreadable: It is damaged.
    """
    if not content.startswith(_RTF):
        raise damaged("it does not begin as rich text does")
    try:
        # The format is ASCII; other characters are escaped, in the code page that the document states.
        found: str = rtf_to_text(content.decode("latin-1"), encoding="cp1252", errors="replace")  # type: ignore[no-untyped-call]
    except (ValueError, IndexError, KeyError, LookupError) as error:
        raise damaged("its formatting cannot be read") from error
    text = budget.builder()
    for line in found.splitlines():
        if line.strip():
            text.add(line.rstrip())
        else:
            text.add_blank()
    budget.warn_if_full(text)
    return ParsedDocument(DocumentKind.PROSE, media_type, text.text())
