"""Compressed documents: a ZIP archive whose parts are read within limits. Nothing is extracted to files."""

import io
import zipfile
import zlib
from typing import Final

from lxml import etree

from mnemesh_files.parsers.document import MEGABYTE, Cause, DocumentUnreadable, ParseLimits

_ENCRYPTED: Final = 0x1
_SIGNS_OF_ENTITIES: Final = (b"<!ENTITY",)
_SIGNS_OF_TYPES: Final = (*_SIGNS_OF_ENTITIES, b"<!DOCTYPE")
_OVERLAP: Final = 16
_XML: Final = (".xml", ".rels", ".opf", ".ncx")
_DAMAGED: Final = "The document is damaged: {}. Open it in its application and save it again."


class Archive:
    """The parts of a compressed document, checked against the limits."""

    def __init__(self, content: bytes, limits: ParseLimits) -> None:
        """Opens an archive.

        Raises:
            DocumentUnreadable: It is damaged, encrypted, or larger than the limits after expansion.
        """
        try:
            self._file = zipfile.ZipFile(io.BytesIO(content))
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError) as error:
            raise damaged("its list of parts cannot be read") from error
        parts = self._file.infolist()
        if len(parts) > limits.archive_entries:
            raise _too_large(f"has {len(parts):,} parts; at most {limits.archive_entries:,} are read")
        for part in parts:
            if part.flag_bits & _ENCRYPTED:
                raise DocumentUnreadable(
                    Cause.ENCRYPTED, "The document is encrypted. Remove its password and upload it again."
                )
            larger_than_ratio = part.file_size > max(1, part.compress_size) * limits.expansion_ratio
            if part.file_size > MEGABYTE and larger_than_ratio:
                raise _too_large(f"expands more than {limits.expansion_ratio:,} times, as a decompression bomb does")
        # No reader of an archive returns more of a part than the size that its list states.
        total = sum(part.file_size for part in parts)
        if total > limits.expanded_mb * MEGABYTE:
            raise _too_large(f"expands to {total // MEGABYTE:,} MB; at most {limits.expanded_mb:,} MB are read")
        self.names = frozenset(part.filename for part in parts)

    def read(self, name: str) -> bytes:
        """Returns a part.

        Raises:
            DocumentUnreadable: It is missing or damaged.
        """
        try:
            return self._file.read(name)
        except KeyError:
            raise damaged("a part is missing") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError, RuntimeError):
            raise damaged("a part cannot be read") from None

    def require_no_entities(self, *, allow_types: bool = False) -> None:
        """Refuses XML parts that declare entities, which attacks expand. No application writes them.

        Args:
            allow_types: Document types without entities are allowed, as in parts of an epub.

        Raises:
            DocumentUnreadable: A part has such a declaration, or is damaged.
        """
        signs = _SIGNS_OF_ENTITIES if allow_types else _SIGNS_OF_TYPES
        for name in self.names:
            if name.lower().endswith(_XML) and self._contains(name, signs):
                raise DocumentUnreadable(
                    Cause.DAMAGED,
                    "The document declares XML entities or document types, which its format forbids. Open it in its "
                    "application and save it again.",
                )

    def _contains(self, name: str, signs: tuple[bytes, ...]) -> bool:
        before = b""
        try:
            with self._file.open(name) as part:
                while chunk := part.read(MEGABYTE):
                    text = before + chunk.replace(b"\0", b"")  # also in UTF-16
                    if any(sign in text for sign in signs):
                        return True
                    before = text[-_OVERLAP:]
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError, RuntimeError):
            raise damaged("a part cannot be read") from None
        return False


def damaged(what: str) -> DocumentUnreadable:
    """Returns the error for a damaged document."""
    return DocumentUnreadable(Cause.DAMAGED, _DAMAGED.format(what))


def _too_large(what: str) -> DocumentUnreadable:
    return DocumentUnreadable(Cause.TOO_LARGE, f"The document {what}. Divide it, or upload its text.")


def element(data: bytes) -> etree._Element:
    """Returns the root of an XML part.

    Raises:
        DocumentUnreadable: It is not XML.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, recover=True)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError:
        root = None
    if root is None:
        raise damaged("a part is not XML")
    return root


def text_of(root: etree._Element, local_name: str) -> str:
    """Returns the text of the first element with this name in any namespace; "" if there is none."""
    for found in root.iter(f"{{*}}{local_name}"):
        return " ".join("".join(found.itertext()).split())
    return ""
