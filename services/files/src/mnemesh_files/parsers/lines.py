"""Lines of text: line ends, characters that no line can contain, and the division of lines that are too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

MAX_VERBATIM_LINE: Final = 4_000
"""Characters of a line of a text file. A longer one is divided, which changes the numbers of the lines after it."""
MAX_DOCUMENT_LINE: Final = 500
"""Characters of a line of a document whose format has no lines, such as a paragraph of a docx."""

# Python, Unicode and editors disagree on whether these end a line, so no text contains them.
_OTHER_LINE_BREAKS: Final = ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_SENTENCE_END: Final = re.compile(r"""[.!?…]["'”’»)\]]*\s+|[。！？]["'”’」』）]*\s*""")
_BLANK: Final = re.compile(r"\s+")
_HIDDEN: Final = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
_FLAG: Final = re.compile("\U0001f3f4[\U000e0020-\U000e007f]+")
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def normalized(text: str) -> str:
    """Returns `text` with line feeds as the only line breaks, and without NUL characters and lone surrogates."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    for character in _OTHER_LINE_BREAKS:
        if character in text:
            text = text.replace(character, " ")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-8", "replace").decode()
    return text


def without_final_line_feed(text: str) -> str:
    """Returns `text` without one line feed at its end: it ends the last line and begins none."""
    return text.removesuffix("\n")


def hidden_characters(text: str) -> int:
    """Returns how many characters change the direction of text or hide text: a reader does not see what they do."""
    if text.isascii():
        return 0
    return len(_HIDDEN.findall(_FLAG.sub("", text)))


def hidden_characters_warning(text: str) -> list[str]:
    """Returns a warning if the text contains hidden characters."""
    count = hidden_characters(text)
    if not count:
        return []
    return [f"The text contains {count:,} invisible characters that reverse or hide text. They were kept."]


def with_divided_lines(text: str, max_chars: int) -> tuple[str, int]:
    """Returns `text` with lines of at most `max_chars` characters, and the number of lines that were divided."""
    if len(text) <= max_chars:
        return text, 0
    lines = text.split("\n")
    divided = sum(len(line) > max_chars for line in lines)
    if not divided:
        return text, 0
    lines = [part for line in lines for part in (divide(line, max_chars) if len(line) > max_chars else (line,))]
    return "\n".join(lines), divided


def divide(line: str, max_chars: int) -> Iterator[str]:
    """Yields the parts of a line, each at most `max_chars` characters: sentences, else words, else characters.

    White space at a division is dropped.
    """
    position = 0
    while len(line) - position > max_chars:
        end = _division(line, position, position + max_chars)
        if part := line[position:end].rstrip():
            yield part
        position = end
        if blank := _BLANK.match(line, position):
            position = blank.end()
    if part := line[position:].rstrip():
        yield part


def _division(line: str, start: int, limit: int) -> int:
    """Returns the position in (start, limit] at which a part ends."""
    end = 0
    for match in _SENTENCE_END.finditer(line, start, limit):
        end = match.end()
    if end > start + (limit - start) // 4:
        return end
    middle = start + (limit - start) // 2
    for position in range(limit - 1, middle, -1):
        if line[position].isspace():
            return position + 1
    return limit


class TextBuilder:
    """Collects the lines of a document up to a number of characters."""

    def __init__(self, max_chars: int, max_line: int = MAX_DOCUMENT_LINE) -> None:
        self._max_chars = max_chars
        self._max_line = max_line
        self._lines: list[str] = []
        self._starts: list[int] = []
        self._chars = 0
        self.is_full = False
        """Whether the limit was reached. Later lines are dropped."""

    def begin_page(self) -> None:
        """Begins a page, slide or sheet at the next line, after an empty one."""
        self.add_blank()
        self._starts.append(len(self._lines) + 1)

    def add(self, text: str) -> None:
        """Adds the lines of a text; lines that are too long are divided."""
        for line in normalized(text).split("\n"):
            if len(line) <= self._max_line:
                self._add_line(line)
            else:
                for part in divide(line, self._max_line):
                    self._add_line(part)

    def add_all(self, texts: Iterable[str]) -> None:
        """Adds texts until the limit is reached."""
        for text in texts:
            if self.is_full:
                return
            self.add(text)

    def add_blank(self) -> None:
        """Adds an empty line, unless the last line is empty or there is none."""
        if self._lines and self._lines[-1]:
            self._add_line("")

    def text(self) -> str:
        """Returns the lines, without blank lines at the end."""
        return "\n".join(self._lines[: self._end()])

    def page_starts(self) -> tuple[int, ...]:
        """Returns the first line of each page."""
        end = self._end() + 1
        return tuple(min(start, end) for start in self._starts)

    def _end(self) -> int:
        end = len(self._lines)
        while end and not self._lines[end - 1].strip():
            end -= 1
        return end

    def _add_line(self, line: str) -> None:
        if self.is_full:
            return
        self._chars += len(line) + 1
        if self._chars > self._max_chars:
            self.is_full = True
            return
        self._lines.append(line.rstrip())
