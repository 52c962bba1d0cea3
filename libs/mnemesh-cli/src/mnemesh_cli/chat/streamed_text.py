"""The text of an answer while it is streamed: what was received, and what is printed already."""

from __future__ import annotations

from mnemesh_cli.display.markdown import complete_blocks


class StreamedText:
    """The text of one answer. Its complete blocks are printed while it is streamed."""

    def __init__(self) -> None:
        self.printed = ""
        self._received = ""

    @property
    def rest(self) -> str:
        """The received text that is not printed yet."""
        return self._received[len(self.printed) :]

    def add(self, text: str, offset: int) -> bool:
        """Adds a part that begins at an offset of the text. Returns False if a part before it is missing."""
        if offset > len(self._received):
            return False
        self._received += text[len(self._received) - offset :]
        return True

    def take_complete(self) -> str:
        """Returns the blocks that are complete and not printed. They count as printed."""
        if "\n" not in self.rest:
            return ""
        complete, _ = complete_blocks(self.rest)
        self.printed += complete
        return complete

    def finish(self, text: str) -> str:
        """Returns what is left to print of the whole text: all of it, if it is not the text that was streamed."""
        if not text.startswith(self.printed):
            self.printed = ""
        return text[len(self.printed) :]
