"""Decompression of bodies that nobody trusts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

_CHUNK: Final = 65_536
# The header of the zlib format, or of gzip.
_ANY_WINDOW: Final = zlib.MAX_WBITS | 32


class Inflate:
    """Decompresses a body in pieces of bounded size, so that a small body cannot become a large one at once."""

    def __init__(self, encoding: str) -> None:
        """Starts with no data.

        Args:
            encoding: The value of the header Content-Encoding, "gzip" or "deflate".
        """
        self._encoding = encoding
        self._inflate = zlib.decompressobj(_ANY_WINDOW)
        self._has_begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the compressed data has ended, or has not begun."""
        return self._inflate.eof or not self._has_begun

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """Yields what the next bytes of the body contain. Raises zlib.error."""
        if not self._has_begun:
            self._has_begun = True
            if self._encoding == "deflate" and raw[0] & 0x0F != zlib.DEFLATED:
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # deflate without a header, which servers send, too
        piece = b"first"
        while piece and not self._inflate.eof:
            piece = self._inflate.decompress(raw, _CHUNK)
            raw = self._inflate.unconsumed_tail
            if piece:
                yield piece
