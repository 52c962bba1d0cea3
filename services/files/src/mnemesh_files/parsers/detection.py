"""Detects the format of a file: by its first bytes; its name decides only between formats of text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mnemesh_files.parsers.document import DocumentKind
from mnemesh_files.parsers.errors import Cause, DocumentUnreadable
from mnemesh_files.parsers.formats import HTML_TEXT, PLAIN_TEXT, FileType, Format, type_of_media_type, type_of_name

HEAD_BYTES: Final = 8_192
"""The number of bytes that detection needs."""

_PDF: Final = b"%PDF-"
_PDF_WITHIN: Final = 1_024
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
)
_BRANDS: Final = {b"avif": "image/avif", b"avis": "image/avif", b"heic": "image/heic", b"heix": "image/heic"}
# Formats without a parser, for errors that say what the file is.
_UNSUPPORTED: Final = (
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ\0", "an xz file"),
    (b"(\xb5/\xfd", "a zstd file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x7fELF", "a program"),
    (b"\xca\xfe\xba\xbe", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"PAR1", "a Parquet file"),
    (b"ID3", "an audio file"),
    (b"OggS", "an audio or video file"),
    (b"fLaC", "an audio file"),
    (b"\x1aE\xdf\xa3", "a video"),
    (b"%!PS", "a PostScript document"),
    (b"AT&TFORM", "a DjVu document"),
    (b"ITSF", "a CHM file"),
)
_HTML: Final = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?>(?:<!--.*?-->\s*)*)<(?:!doctype\s+html|html[\s>]|head[\s>]|body[\s>])",
    re.DOTALL | re.IGNORECASE,
)
REMEDY: Final = "Upload a text file, PDF, docx, xlsx, pptx, odt, ods, odp, rtf, epub, HTML file or image."


@dataclass(frozen=True, slots=True)
class Detected:
    """The format of a file."""

    format: Format
    file_type: FileType


def detect(head: bytes, name: str, media_type: str | None = None) -> Detected:
    """Returns the format of a file.

    Args:
        head: Its first HEAD_BYTES bytes, or all of them.
        name: Its name.
        media_type: What the client says that it is. Used only if the name says nothing.

    Raises:
        DocumentUnreadable: No parser reads the format.
    """
    if (binary := _binary_format(head)) is not None:
        return binary
    for signature, what in _UNSUPPORTED:
        if head.startswith(signature):
            raise DocumentUnreadable(Cause.UNSUPPORTED, f"The file is {what}, which no parser reads. {REMEDY}")
    named = type_of_name(name)
    file_type = named or (type_of_media_type(media_type) if media_type else None) or PLAIN_TEXT
    if file_type is HTML_TEXT or (file_type.kind is not DocumentKind.CODE and _is_html(head)):
        return Detected(Format.HTML, HTML_TEXT)
    return Detected(Format.TEXT, file_type)


def _binary_format(head: bytes) -> Detected | None:
    if _PDF in head[:_PDF_WITHIN] and not _is_text_about_pdf(head):
        return Detected(Format.PDF, FileType(DocumentKind.PROSE, "application/pdf"))
    if head.startswith(b"PK\x03\x04"):
        return Detected(Format.OFFICE, FileType(DocumentKind.PROSE, "application/zip"))
    if head.startswith(_OLE):
        return Detected(Format.OFFICE, FileType(DocumentKind.PROSE, "application/x-ole-storage"))
    if head.startswith(b"{\\rtf"):
        return Detected(Format.RTF, FileType(DocumentKind.PROSE, "application/rtf"))
    for signature, media_type in _IMAGES:
        if head.startswith(signature):
            return _image(media_type)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _image("image/webp")
    if head.startswith(b"BM") and head[6:10] == b"\0\0\0\0":
        return _image("image/bmp")
    if head[4:8] == b"ftyp":
        if (brand := _BRANDS.get(head[8:12])) is not None:
            return _image(brand)
        raise DocumentUnreadable(Cause.UNSUPPORTED, f"The file is a video, which no parser reads. {REMEDY}")
    return None


def _image(media_type: str) -> Detected:
    return Detected(Format.IMAGE, FileType(DocumentKind.IMAGE, media_type))


def _is_text_about_pdf(head: bytes) -> bool:
    """Returns whether the signature of a PDF stands within text, such as this source."""
    before = head[: head.index(_PDF)]
    return bool(before.strip(b"\xef\xbb\xbf \t\r\n")) and b"\0" not in head and head.isascii()


def _is_html(head: bytes) -> bool:
    return _HTML.match(head.removeprefix(b"\xef\xbb\xbf")) is not None
