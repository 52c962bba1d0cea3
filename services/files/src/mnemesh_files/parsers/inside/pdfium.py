"""The library of PDF documents, loaded where the parser's account reaches its directory through a descriptor only."""

from __future__ import annotations

from pathlib import Path

# The library resolves the path of its own file. Below a directory that only root can enter, the result is a path that
# the parser's account cannot open; the path through the descriptor of the directory is one that it can.
_resolve = Path.resolve
Path.resolve = lambda path, strict=False: path.absolute()  # type: ignore[method-assign, assignment]  # noqa: ARG005
try:
    import pypdfium2 as pdfium
finally:
    Path.resolve = _resolve  # type: ignore[method-assign]

__all__ = ["pdfium"]
