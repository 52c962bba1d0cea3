"""The ways in which callers store a dialogue: with or without times, with the speaker as name, in the text, or not at
all."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from benchmarks.dialogues import Dialogue, Turn


@dataclass(frozen=True, slots=True)
class Variant:
    """The data that a caller stores with each turn."""

    times: Literal["turn", "session", "none"] = "turn"
    speaker: Literal["name", "text", "none"] = "name"
    roles: Literal["both", "user", "assistant"] = "both"
    sessions: Literal["together", "conversations"] = "together"
    """Selects whether each session is a conversation; ignored for passages."""
    batch: int = 100

    def text(self, turn: Turn) -> str:
        """Returns the stored text."""
        return f"{turn.speaker}: {turn.text}" if self.speaker == "text" else turn.text

    def texts(self, dialogue: Dialogue) -> list[str]:
        """Returns the texts of all turns."""
        return [self.text(turn) for turn in dialogue.turns]

    def time(self, dialogue: Dialogue, turn: Turn) -> datetime | None:
        """Returns the stored time, or None."""
        if self.times == "none":
            return None
        if self.times == "turn":
            return turn.said_at
        return next(each.said_at for each in dialogue.turns if each.session == turn.session)


VARIANTS: Final = {
    "named": Variant(),
    "in-text": Variant(speaker="text"),
    "nameless": Variant(speaker="none"),
    "session-times": Variant(times="session", speaker="text"),
    "conversations": Variant(sessions="conversations"),
    "timeless": Variant(times="none", speaker="text"),
    "timeless-named": Variant(times="none"),
    "users": Variant(roles="user"),
    "assistants": Variant(roles="assistant", times="session"),
    "one-by-one": Variant(speaker="text", batch=1),
}
