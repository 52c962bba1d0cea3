"""The character encoding of a text file, and its characters."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final

from mnemesh_files.parsers.lines import REPLACEMENT

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE: Final = 16_384
_MULTIBYTE: Final = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]")
_CONTROL: Final = re.compile("[\x00-\x06\x0e-\x1a\x7f]")
_MAX_CONTROL_SHARE: Final = 0.02
_FALLBACK: Final = "cp1252"
# The encodings of text files that are neither Unicode nor guessed wrongly more often than met.
_CANDIDATES: Final = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874"),
    *("iso8859_2", "iso8859_5", "iso8859_7", "iso8859_15", "koi8_r", "koi8_u", "cp866", "mac_roman"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
]


class NotText(Exception):
    """The bytes are no text in any encoding."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The characters of a text file."""

    text: str
    encoding: str
    warnings: tuple[str, ...] = ()


def decode(data: bytes, *, is_cut: bool = False) -> Decoded:
    """Returns the characters of a text file: by its byte order mark, as UTF-8, as UTF-16, or as the likeliest encoding.

    Bytes that are no characters become U+FFFD, with a warning.

    Args:
        data: The bytes.
        is_cut: The bytes are the beginning of a longer file. Its last character may be incomplete.

    Raises:
        NotText: The bytes are no text.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _checked(_decoded(data[len(mark) :], encoding, is_cut=is_cut))
    if (unmarked := _unmarked_utf16(data[:_SAMPLE])) is not None:
        return _checked(_decoded(data, unmarked, is_cut=is_cut))
    try:
        return _checked(Decoded(_strict(data, "utf-8", is_cut=is_cut), "utf-8"))
    except UnicodeDecodeError:
        pass
    return _checked(_decoded(data, _guess(data), is_cut=is_cut))


def _strict(data: bytes, encoding: str, *, is_cut: bool) -> str:
    return codecs.getincrementaldecoder(encoding)("strict").decode(data, final=not is_cut)


def _decoded(data: bytes, encoding: str, *, is_cut: bool) -> Decoded:
    guessed = (f"The encoding is not stated. It was guessed as {encoding}.",) if encoding not in _UNICODE else ()
    try:
        return Decoded(_strict(data, encoding, is_cut=is_cut), encoding, guessed)
    except UnicodeDecodeError:
        pass
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    text = decoder.decode(data, final=not is_cut)
    count = text.count(REPLACEMENT)
    replaced = f"The file contains bytes that are no characters in {encoding}. {count:,} were replaced."
    return Decoded(text, encoding, (*guessed, replaced))


_UNICODE: Final = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


def _unmarked_utf16(sample: bytes) -> str | None:
    """Returns UTF-16 if every other byte is NUL in most places, as in text of European languages."""
    pairs = len(sample) // 2
    if pairs < 2 or b"\0" not in sample:
        return None
    even, odd = sample[0 : pairs * 2 : 2].count(0), sample[1 : pairs * 2 : 2].count(0)
    if odd > pairs * 0.6 and even < pairs * 0.05:
        return "utf-16-le"
    if even > pairs * 0.6 and odd < pairs * 0.05:
        return "utf-16-be"
    return None


def _guess(data: bytes) -> str:
    """Returns the likeliest encoding of bytes that are not UTF-8: UTF-8 with a few wrong bytes, or an older one."""
    multibyte = sum(len(found) for found in _MULTIBYTE.findall(data))
    others = sum(1 for _ in _NOT_ASCII.finditer(data)) - multibyte
    if multibyte > others:
        return "utf-8"
    # Imported here: only the files that need it pay for it.
    from charset_normalizer import from_bytes  # noqa: PLC0415

    first = _NOT_ASCII.search(data)
    start = max(0, (first.start() if first else 0) - _SAMPLE // 16)
    sample = data[start : start + _SAMPLE]
    best = from_bytes(sample, cp_isolation=_CANDIDATES, threshold=0.3).best()
    if best is None or str(best) == sample.decode(_FALLBACK, "replace"):
        return _FALLBACK  # encodings of neighbours agree on most characters
    return best.encoding


def _checked(decoded: Decoded) -> Decoded:
    """Returns `decoded` if it is text: it has few control characters, and a NUL only now and then.

    Raises:
        NotText: It is not.
    """
    text = decoded.text
    sample = text[:_SAMPLE]
    controls = len(_CONTROL.findall(sample))
    if controls > max(1, len(sample) * _MAX_CONTROL_SHARE) or (decoded.encoding in _UNICODE[1:] and _is_noise(sample)):
        raise NotText
    if nuls := text.count("\0"):
        return Decoded(text, decoded.encoding, (*decoded.warnings, f"{nuls:,} NUL characters were replaced."))
    return decoded


def _is_noise(sample: str) -> bool:
    """Returns whether too many characters are replaced or private: random bytes read as UTF-16."""
    odd = sum(character == REPLACEMENT or "\ue000" <= character <= "\uf8ff" for character in sample)
    return odd > max(1, len(sample) * 0.05)
