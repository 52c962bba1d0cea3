"""Names of files and the formats that they promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from mnemesh_files.parsers.document import DocumentKind


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
