"""Compressed documents: finds out which one it is by its parts."""

import zipfile
import zlib
from importlib import import_module
from typing import Final
from xml.parsers.expat import ExpatError

from mnemesh_files.parsers.document import Budget, Cause, DocumentUnreadable, ParsedDocument
from mnemesh_files.parsers.inside.archive import Archive, damaged

_OLE: Final = "application/x-ole-storage"
_ENCRYPTED_PACKAGE: Final = "EncryptedPackage".encode("utf-16-le")
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
# What the libraries raise for parts that are missing or no XML. Only errors of expat are no SyntaxErrors.
_DAMAGE: Final = (SyntaxError, ExpatError, zipfile.BadZipFile, zlib.error, EOFError, KeyError)
# The part that only this kind has, its parser and its media type.
_KINDS: Final = (
    ("word/", "word", f"{_OFFICE}wordprocessingml.document"),
    ("xl/", "sheets", f"{_OFFICE}spreadsheetml.sheet"),
    ("ppt/", "slides", f"{_OFFICE}presentationml.presentation"),
    ("META-INF/container.xml", "epub", "application/epub+zip"),
    ("mimetype", "opendocument", "application/vnd.oasis.opendocument.text"),
)


def parse(content: bytes, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of a docx, xlsx, pptx, epub, odt, ods or odp file.

    Raises:
        DocumentUnreadable: It is another kind of file, encrypted, damaged, or too large.
    """
    if media_type == _OLE:
        raise _earlier_format(content)
    archive = Archive(content, budget.limits)
    for prefix, module, found in _KINDS:
        if any(name.startswith(prefix) for name in archive.names):
            archive.require_no_entities(allow_types=module in ("epub", "opendocument"))
            parser = import_module(f"{__package__}.{module}")
            try:
                document: ParsedDocument = parser.parse(content, archive, found, budget)
            except _DAMAGE as error:
                raise damaged("a part is missing, or cannot be read") from error
            return document
    raise DocumentUnreadable(Cause.UNSUPPORTED, "The file is a ZIP archive. Upload the files in it one by one.")


def _earlier_format(content: bytes) -> DocumentUnreadable:
    if _ENCRYPTED_PACKAGE in content:
        return DocumentUnreadable(
            Cause.ENCRYPTED, "The document is encrypted. Remove its password and upload it again."
        )
    return DocumentUnreadable(
        Cause.UNSUPPORTED,
        "The file has the format of Office before 2007 (doc, xls, ppt), which no parser reads. Save it as docx, xlsx, "
        "pptx or PDF.",
    )
