"""Finds the reasoning in the text of an answer."""

import re
from typing import Final

_NAMES: Final = ("think", "thinking", "thought", "reasoning", "seed:think", "mm:think", "longcat_think")
_CLOSINGS: Final = {f"<{name}>": f"</{name}>" for name in _NAMES} | {"[think]": "[/think]", "◁think▷": "◁/think▷"}
"""The tags, in lower case. The last two are those of Magistral and Kimi."""
_STRAY: Final = "</think>"
_MAX_TAGS: Final = 32
"""The largest number of tags before the text. Each costs as much as what a piece has behind it."""
_MAX_HELD: Final = 4096
# Templates of models such as DeepSeek-R1 write the opening tag into the prompt, so answers have the closing one only.
_LONE_CLOSING: Final = re.compile(r"(?im)^[ \t]*</think(?:ing)?>[ \t]*$\s*")
_FENCE: Final = "```"


class ThinkTags:
    """Separates reasoning in tags from the text behind it. Pieces may end within a tag.

    `has_opened` is true once there was a tag, and `is_over` once the text has begun.
    """

    def __init__(self) -> None:
        self.has_opened = False
        self.is_over = False
        self._count = 0
        self._closing: re.Pattern[str] | None = None
        self._has_thought = False
        self._tag = ""
        self._held = ""

    def add(self, piece: str) -> tuple[str, str]:
        """Returns the next reasoning and the next text. What may belong to a tag is held back."""
        thought, self._held = "", self._held + piece
        while not self.is_over:
            if self._closing is None:
                if not self._open():
                    break
            else:
                found = self._closing.search(self._held)
                if found is None:
                    return thought + self._inside(), ""
                thought += self._thought(self._held[: found.start()].rstrip())
                self._held, self._closing = self._held[found.end() :], None
        text = ""
        if self.is_over:
            text, self._held = self._held, ""
        return thought, text

    def end(self) -> tuple[str, str]:
        """Returns the rest: reasoning whose tag was never closed, or text."""
        held, self._held = self._held, ""
        if self._closing is not None:
            return self._thought(held.rstrip()), ""
        return "", held if not self.has_opened else held.strip()

    def _open(self) -> bool:
        """Looks for an opening tag. Returns whether it is known if there is one."""
        begun = self._held.lstrip()
        if not begun and len(self._held) <= _MAX_HELD:
            return False
        lower = begun[:20].lower()
        opening = next((tag for tag in _CLOSINGS if lower.startswith(tag)), None)
        is_tag = opening is not None or lower.startswith(_STRAY)
        self._count += is_tag
        if is_tag and self._count > _MAX_TAGS:
            self.is_over = True
        elif opening is not None:
            self.has_opened, self._tag = True, _CLOSINGS[opening]
            self._closing = re.compile(re.escape(self._tag), re.IGNORECASE)
            self._held, self._has_thought = begun[len(opening) :], False
        elif is_tag:  # Some servers send the reasoning apart, without its closing tag.
            self.has_opened, self._held = True, begun[len(_STRAY) :]
        elif any(tag.startswith(lower) for tag in (*_CLOSINGS, _STRAY)):
            return False
        else:
            self.is_over = True
            self._held = begun if self.has_opened else self._held
        return True

    def _inside(self) -> str:
        """Returns the held reasoning except for what may be the beginning of the closing tag, and blanks before it."""
        held, lower = self._held, self._held[-len(self._tag) :].lower()
        size = next((n for n in range(len(lower), 0, -1) if self._tag.startswith(lower[len(lower) - n :])), 0)
        end = len(held[: len(held) - size].rstrip())
        if len(held) - end > _MAX_HELD:
            end = len(held) - size
        self._held = held[end:]
        return self._thought(held[:end])

    def _thought(self, piece: str) -> str:
        """Returns a piece of reasoning without the blanks behind the opening tag."""
        piece = piece if self._has_thought else piece.lstrip()
        self._has_thought = self._has_thought or bool(piece)
        return piece


def split_lone_closing(text: str) -> tuple[str, str] | None:
    """Returns the reasoning and the text of an answer whose opening tag is missing; None if it has no such reasoning.

    The closing tag must be alone on its line, be the first tag of the text, and not stand in a block of code.
    """
    found = _LONE_CLOSING.search(text)
    if found is None:
        return None
    thought = text[: found.start()]
    if "<think" in thought.lower() or "</think" in thought.lower() or thought.count(_FENCE) % 2:
        return None
    return thought.strip(), text[found.end() :]
