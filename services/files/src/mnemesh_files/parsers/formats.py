"""Which format a file has, and the texts of formats that are text."""

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from mnemesh_files.parsers.document import (
    MAX_VERBATIM_LINE,
    REPLACEMENT,
    Cause,
    DocumentKind,
    DocumentUnreadable,
    ParsedDocument,
    ParseLimits,
    hidden_characters_warning,
    normalized,
    with_divided_lines,
    without_final_line_feed,
)

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
_HTML_START: Final = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?>(?:<!--.*?-->\s*)*)<(?:!doctype\s+html|html[\s>]|head[\s>]|body[\s>])",
    re.DOTALL | re.IGNORECASE,
)
REMEDY: Final = "Upload a text file, PDF, docx, xlsx, pptx, odt, ods, odp, rtf, epub, HTML file or image."


class Format(StrEnum):
    """How the content of a file is read."""

    TEXT = "text"
    """Characters in lines, kept as they are."""
    HTML = "html"
    PDF = "pdf"
    OFFICE = "office"
    """A compressed document: docx, xlsx, pptx, epub, odt, ods, odp. Its parts tell which."""
    RTF = "rtf"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class FileType:
    """What the name of a text file says about it."""

    kind: DocumentKind
    media_type: str
    language: str = ""


PLAIN_TEXT: Final = FileType(DocumentKind.PROSE, "text/plain")
HTML_TEXT: Final = FileType(DocumentKind.PROSE, "text/html")

_LANGUAGES: Final[Mapping[str, str]] = {
    "ada": "adb ads",
    "assembly": "asm s",
    "batch": "bat cmd",
    "c": "c h",
    "clojure": "clj cljs edn",
    "cmake": "cmake",
    "cobol": "cob cbl",
    "cpp": "cpp cc cxx hpp hh hxx c++ ino cu",
    "csharp": "cs",
    "css": "css scss sass less",
    "d": "d",
    "dart": "dart",
    "diff": "diff patch",
    "elixir": "ex exs",
    "elm": "elm",
    "erlang": "erl hrl",
    "fortran": "f f90 f95 for",
    "fsharp": "fs fsi fsx",
    "go": "go",
    "graphql": "graphql gql",
    "groovy": "groovy gradle",
    "haskell": "hs lhs",
    "hcl": "tf hcl tfvars",
    "java": "java",
    "javascript": "js mjs cjs jsx",
    "julia": "jl",
    "kotlin": "kt kts",
    "lisp": "lisp lsp cl el",
    "lua": "lua",
    "makefile": "mk mak",
    "matlab": "m",
    "nim": "nim",
    "nix": "nix",
    "ocaml": "ml mli",
    "pascal": "pas pp",
    "perl": "pl pm",
    "php": "php phtml",
    "powershell": "ps1 psm1",
    "prolog": "pro",
    "protobuf": "proto",
    "python": "py pyi pyw pyx",
    "r": "r",
    "racket": "rkt",
    "ruby": "rb rake gemspec erb",
    "rust": "rs",
    "scala": "scala sc",
    "scheme": "scm ss",
    "shell": "sh bash zsh fish ksh",
    "solidity": "sol",
    "sql": "sql",
    "starlark": "bzl star",
    "svelte": "svelte",
    "swift": "swift",
    "tcl": "tcl",
    "template": "j2 jinja jinja2 tmpl mustache hbs ejs",
    "typescript": "ts tsx mts cts",
    "verilog": "v sv",
    "vhdl": "vhd vhdl",
    "visual basic": "vb vbs bas",
    "vue": "vue",
    "wgsl": "wgsl glsl hlsl",
    "zig": "zig",
}
_MEDIA_TYPES_OF_CODE: Final[Mapping[str, str]] = {
    "css": "text/css",
    "javascript": "text/javascript",
    "typescript": "text/typescript",
    "shell": "application/x-sh",
    "sql": "application/sql",
    "diff": "text/x-diff",
}
_DATA: Final[Mapping[str, str]] = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "tab": "text/tab-separated-values",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "ndjson": "application/jsonl",
    "geojson": "application/geo+json",
    "ipynb": "application/x-ipynb+json",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "toml": "application/toml",
    "xml": "application/xml",
    "xsd": "application/xml",
    "xsl": "application/xml",
    "svg": "image/svg+xml",
    "plist": "application/xml",
    "ini": "text/plain",
    "cfg": "text/plain",
    "conf": "text/plain",
    "properties": "text/plain",
    "env": "text/plain",
    "log": "text/plain",
    "bib": "text/x-bibtex",
    "vcf": "text/vcard",
    "ics": "text/calendar",
}
_PROSE: Final[Mapping[str, str]] = {
    "txt": "text/plain",
    "text": "text/plain",
    "md": "text/markdown",
    "markdown": "text/markdown",
    "mdx": "text/markdown",
    "rst": "text/x-rst",
    "adoc": "text/asciidoc",
    "asciidoc": "text/asciidoc",
    "org": "text/org",
    "tex": "text/x-tex",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "eml": "message/rfc822",
}
_HTML: Final = ("html", "htm", "xhtml", "xht")
_NAMES: Final[Mapping[str, FileType]] = {
    "makefile": FileType(DocumentKind.CODE, "text/x-makefile", "makefile"),
    "gnumakefile": FileType(DocumentKind.CODE, "text/x-makefile", "makefile"),
    "dockerfile": FileType(DocumentKind.CODE, "text/x-dockerfile", "dockerfile"),
    "containerfile": FileType(DocumentKind.CODE, "text/x-dockerfile", "dockerfile"),
    "cmakelists.txt": FileType(DocumentKind.CODE, "text/x-cmake", "cmake"),
    "gemfile": FileType(DocumentKind.CODE, "text/x-ruby", "ruby"),
    "rakefile": FileType(DocumentKind.CODE, "text/x-ruby", "ruby"),
    "jenkinsfile": FileType(DocumentKind.CODE, "text/x-groovy", "groovy"),
    ".bashrc": FileType(DocumentKind.CODE, "application/x-sh", "shell"),
    ".gitignore": FileType(DocumentKind.DATA, "text/plain"),
    ".env": FileType(DocumentKind.DATA, "text/plain"),
}


def _code(language: str) -> FileType:
    media_type = _MEDIA_TYPES_OF_CODE.get(language, f"text/x-{language.replace(' ', '-')}")
    return FileType(DocumentKind.CODE, media_type, language)


_BY_EXTENSION: Final[Mapping[str, FileType]] = {
    **{extension: _code(name) for name, extensions in _LANGUAGES.items() for extension in extensions.split()},
    **{extension: FileType(DocumentKind.DATA, media_type) for extension, media_type in _DATA.items()},
    **{extension: FileType(DocumentKind.PROSE, media_type) for extension, media_type in _PROSE.items()},
    **dict.fromkeys(_HTML, HTML_TEXT),
}
_BY_MEDIA_TYPE: Final[Mapping[str, FileType]] = {
    file_type.media_type: file_type for file_type in reversed(tuple(_BY_EXTENSION.values()))
} | {"text/plain": PLAIN_TEXT}


def extension_of(name: str) -> str:
    """Returns the extension of a file name in lower case, without its dot."""
    return PurePosixPath(name).suffix[1:].lower()


def type_of_name(name: str) -> FileType | None:
    """Returns what the name of a text file promises, or None if it says nothing."""
    return _NAMES.get(PurePosixPath(name).name.lower()) or _BY_EXTENSION.get(extension_of(name))


def type_of_media_type(media_type: str) -> FileType | None:
    """Returns the type of text file that has a media type, or None."""
    return _BY_MEDIA_TYPE.get(media_type.partition(";")[0].strip().lower())


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
    return _HTML_START.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


_FORMATTED_JSON_CHARS: Final = 2_000_000
_FORMATTED_JSON_GROWTH: Final = 8
_FRONT_MATTER_TITLE: Final = re.compile(r"\A---\n(?:.{0,500}\n){0,50}?title:[ \t]*([^\n]{1,300})\n")
_HEADING: Final = re.compile(r"^#[ \t]+([^\n]{1,300})$", re.MULTILINE)
_TITLE_WITHIN: Final = 10_000


def parse_text_file(path: Path, file_type: FileType, limits: ParseLimits) -> ParsedDocument:
    """Returns the document of a text file. Its lines are those of the file, except those that are too long.

    Blocks.

    Raises:
        DocumentUnreadable: The file is not text.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(limits.text_bytes)
        is_cut = bool(file.read(1))
    try:
        decoded = decode(data, is_cut=is_cut)
    except NotText:
        raise DocumentUnreadable(
            Cause.UNSUPPORTED, f"The file is neither text nor a document that a parser reads. {REMEDY}"
        ) from None
    warnings = list(decoded.warnings)
    if is_cut:
        warnings.append(f"The file has more than {limits.text_bytes:,} bytes. The rest was left out.")
    text = without_final_line_feed(normalized(decoded.text))
    if file_type.media_type in _JSON and (formatted := _formatted(text)) is not None:
        text = formatted
        warnings.append("The JSON has long lines. It was formatted, so its lines are not those of the file.")
    text, divided = with_divided_lines(text, MAX_VERBATIM_LINE)
    if divided:
        warnings.append(
            f"Lines of more than {MAX_VERBATIM_LINE:,} characters: {divided:,}. They were divided, so the numbers of "
            "lines after them are not those of the file."
        )
    warnings.extend(hidden_characters_warning(text))
    return ParsedDocument(
        file_type.kind,
        file_type.media_type,
        text,
        language=file_type.language,
        title=_title(text) if file_type.kind is DocumentKind.PROSE else "",
        encoding=decoded.encoding,
        warnings=tuple(warnings),
    )


_JSON: Final = ("application/json", "application/geo+json", "application/x-ipynb+json")


def _formatted(text: str) -> str | None:
    """Returns JSON with one value per line if it has a line that is too long; None if it cannot be formatted."""
    if len(text) > _FORMATTED_JSON_CHARS or max(map(len, text.split("\n"))) <= MAX_VERBATIM_LINE:
        return None
    parts: list[str] = []
    chars = 0
    try:
        for part in json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(json.loads(text)):
            parts.append(part)
            chars += len(part)
            if chars > len(text) * _FORMATTED_JSON_GROWTH:
                return None  # the indentation of deep nesting
    except (ValueError, RecursionError):
        return None
    return normalized("".join(parts))


def _title(text: str) -> str:
    """Returns the title of a Markdown text: that of its front matter, or its first heading."""
    head = text[:_TITLE_WITHIN]
    found = _FRONT_MATTER_TITLE.match(head) or _HEADING.search(head)
    return found[1].strip().strip("\"'").rstrip("#").strip() if found else ""
