"""Parses streams of server-sent events, as the HTML standard defines them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_EVENT_BYTES: Final = 16 << 20
"""The largest number of bytes of an event, and of a body that is not a stream."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventTooLong(Exception):
    """An event has more than MAX_EVENT_BYTES."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An event. `name` is "" if the stream does not name it; the lines of its data are joined by line breaks."""

    name: str
    data: str


class EventStreamParser:
    """Parses a stream that arrives in pieces, which may end anywhere.

    Comments, `id`, `retry` and unknown fields are skipped, and so are events without data. Bytes that are not UTF-8
    become U+FFFD. The work for a piece depends on the size of the piece only.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_first_line = True
        self._ends_with_cr = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Yields the events that a piece completes.

        Raises:
            EventTooLong: an event is too long.
        """
        if not piece:
            return
        start = 1 if self._ends_with_cr and piece[0] == 0x0A else 0  # The LF belongs to the CR before it.
        self._ends_with_cr = piece[-1] == 0x0D
        for end in _LINE_END.finditer(piece, start):
            self._extend_line(piece[start : end.start()])
            start = end.end()
            if (event := self._end_line()) is not None:
                yield event
        self._extend_line(piece[start:])

    def end(self) -> ServerEvent | None:
        """Returns the event that no blank line ended; None if there is none. The standard drops it.

        Some servers close a stream behind the last line. The data of such an event may be incomplete.
        """
        if self._line:
            self._end_line()
        return self._dispatch()

    def _extend_line(self, piece: bytes) -> None:
        self._line += piece
        if self._size + len(self._line) > MAX_EVENT_BYTES:
            raise EventTooLong

    def _end_line(self) -> ServerEvent | None:
        line = bytes(self._line)
        self._line.clear()
        if self._is_first_line:
            self._is_first_line, line = False, line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode(errors="replace"))
            self._size += len(line)
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode(errors="replace")
        return None

    def _dispatch(self) -> ServerEvent | None:
        name, data = self._name, self._data
        self._name, self._data, self._size = "", [], 0
        return ServerEvent(name, "\n".join(data)) if any(data) else None
