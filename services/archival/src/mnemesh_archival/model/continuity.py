"""Whether consecutive passages belong together: as a dialogue, as a document, or by the word of the caller."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import pairwise
from typing import Final

from mnemesh_retrieval.ranking.scores import utterance

MAX_GAP: Final = timedelta(hours=6)
"""Passages whose times are further apart do not belong together."""
WINDOW: Final = 8
"""The number of consecutive passages that are compared with a dialogue."""
_MIN_NAMED: Final = 3
_MAX_SPEAKERS: Final = 4
_MIN_QUESTIONS: Final = 2


class Continuity(IntEnum):
    """Whether a passage continues others. The first three are the values of the contract."""

    AUTOMATIC = 0
    """Decided by the service; a passage with this value looked like neither a dialogue nor a document so far."""
    CONTINUOUS = 1
    """The caller stated that its passages are consecutive parts."""
    SEPARATE = 2
    """The caller stated that the passage stands alone."""
    DIALOGUE = 3
    """Decided by the service: a turn of a dialogue."""
    DOCUMENT = 4
    """Decided by the service: a part of a file."""

    __hash__ = int.__hash__  # The hash of enumerations is a slow function, and a search needs hundreds.

    @property
    def is_linked(self) -> bool:
        """Whether neighbours with the same value belong together."""
        return self in LINKED

    @property
    def is_spoken(self) -> bool:
        """Whether speakers and questions of the passage count in the ranking."""
        return self in _SPOKEN


_SPOKEN: Final = frozenset({Continuity.CONTINUOUS, Continuity.DIALOGUE})
LINKED: Final = frozenset({Continuity.CONTINUOUS, Continuity.DIALOGUE, Continuity.DOCUMENT})
"""See `Continuity.is_linked`."""


class Asking(IntEnum):
    """Whether a text has question sentences."""

    NONE = 0
    SOMEWHERE = 1
    AT_END = 2


@dataclass(frozen=True, slots=True)
class Cues:
    """The parts of a text by which turns of a dialogue are recognised and ranked."""

    speaker: str
    """The name at the beginning, as in "Ada: Good morning."; "" without one."""
    asking: Asking


@dataclass(frozen=True, slots=True)
class Turn:
    """A passage that may be a turn of a dialogue, among others of the same writer and file."""

    position: int
    created_at: datetime
    speaker: str
    asking: Asking
    continuity: Continuity


def cues_of(text: str) -> Cues:
    parts = utterance(text)
    if not parts.asks:
        return Cues(parts.speaker, Asking.NONE)
    return Cues(parts.speaker, Asking.AT_END if parts.ends_in_question else Asking.SOMEWHERE)


def dialogue_positions(turns: Iterable[Turn]) -> set[int]:
    """Returns the positions of the passages that look like turns of a dialogue.

    Args:
        turns: passages of one strand, in the order of their positions.
    """
    found: set[int] = set()
    run: list[Turn] = []
    for turn in turns:
        if run and not _follows(run[-1], turn):
            run.clear()
        if turn.continuity not in (Continuity.AUTOMATIC, Continuity.DIALOGUE):
            run.clear()
            continue
        run.append(turn)
        window = run[-WINDOW:]
        for start in range(len(window) - 1):
            if _is_dialogue(window[start:]):
                found.update(each.position for each in window[start:])
                break
    return found


def _follows(before: Turn, after: Turn) -> bool:
    return after.position == before.position + 1 and abs(after.created_at - before.created_at) <= MAX_GAP


def _is_dialogue(turns: Sequence[Turn]) -> bool:
    speakers = {turn.speaker for turn in turns}
    if "" not in speakers:
        return _is_named_dialogue(turns, len(speakers))
    return speakers == {""} and _is_nameless_dialogue(turns)


def _is_named_dialogue(turns: Sequence[Turn], speakers: int) -> bool:
    """A few speakers take turns, one of them speaks again, and one asks a question."""
    changes = sum(before.speaker != after.speaker for before, after in pairwise(turns))
    return (
        len(turns) >= _MIN_NAMED
        and 1 < speakers <= min(_MAX_SPEAKERS, len(turns) // 2 + 1)
        and speakers < len(turns)
        and 2 * changes >= len(turns) - 1
        and any(turn.asking for turn in turns)
    )


def _is_nameless_dialogue(turns: Sequence[Turn]) -> bool:
    """Two passages or more ask, at least one in four, and one of them is followed by a passage that does not ask.

    A single question among facts, such as an open point, is not a dialogue.
    """
    asking = sum(turn.asking is not Asking.NONE for turn in turns)
    return asking >= max(_MIN_QUESTIONS, len(turns) / 4) and any(
        before.asking and not after.asking for before, after in pairwise(turns)
    )
