"""The character encoding of a text file, and its characters."""

import codecs
import re
from dataclasses import dataclass
from typing import Final

from mnemesh_files.parsers.document import REPLACEMENT

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
_DETECTED: Final = 262_144
"""The detector sees so many bytes, from shortly before the first character that is not ASCII."""
_FALLBACK: Final = "cp1252"
# The detector returns the labels of web browsers. Python has other names for the encodings that browsers mean by these.
_CODECS: Final = {
    "Shift_JIS": "cp932",
    "EUC-KR": "cp949",
    "GBK": "gb18030",
    "windows-874": "cp874",
    "ISO-8859-8-I": "iso8859_8",
    "ISO-8859-6-I": "iso8859_6",
}


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
    if multibyte >= others * 5:
        return "utf-8"
    # Imported here: only the files that need it pay for it.
    from chardetng_py import EncodingDetector  # noqa: PLC0415

    first = _NOT_ASCII.search(data)
    start = max(0, (first.start() if first else 0) - _SAMPLE // 16)
    detector = EncodingDetector()
    detector.feed(data[start : start + _DETECTED], last=start + _DETECTED >= len(data))
    label = detector.guess(tld=None, allow_utf8=False)
    try:
        return codecs.lookup(_CODECS.get(label, label)).name
    except LookupError:
        return _FALLBACK


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
