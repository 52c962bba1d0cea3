"""The formats of files, and how they are detected by content and name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from mnemesh_files.parsers.document import Cause, DocumentKind, DocumentUnreadable

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
