"""The directories that the parsers import from in the sandbox."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_MODULES: Final = (
    "mnemesh_files",
    "chardetng_py",
    "html_to_markdown",
    "lxml",
    "mammoth",
    "openpyxl",
    "PIL",
    "pptx",
    "pypdfium2",
    "striprtf",
)


def package_directories() -> tuple[str, ...]:
    """Returns the directories of this package and of the libraries of documents, each once."""
    found: dict[str, None] = {}
    for name in _MODULES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise RuntimeError(f"The package {name} is not installed.")
        found[str(Path(spec.origin).resolve().parent.parent)] = None
    return tuple(found)
