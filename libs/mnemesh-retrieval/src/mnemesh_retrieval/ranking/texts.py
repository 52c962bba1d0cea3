"""What the ranking reads in a text: equality with a query, the speaker, question sentences, other sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from mnemesh_retrieval.words.analysis import normal_form
from mnemesh_retrieval.words.speakers import split_speaker

# A sentence ends at a line break, at marks before a space, a closing quote or bracket, or the end, and at wide marks.
_SENTENCE: Final = re.compile(r"(?:(?<![.!?…])[.!?…]++(?=[\s\"'”’»)\]*]|$)|[。！？؟]+|\n)+")
_QUESTION_MARK: Final = re.compile("[?？؟]")
_WORD_CHARACTER: Final = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text without the name of its speaker, in parts."""

    speaker: str
    """The name at the beginning of the text, as in "Ada Lovelace: I wrote a program."; "" without one."""
    text: str
    questions: str
    """The question sentences, separated by line breaks."""
    statements: str
    """The other sentences, separated by line breaks."""
    ends_in_question: bool

    @property
    def asks(self) -> bool:
        """Whether the text has a question sentence."""
        return bool(self.questions)


def utterance(text: str, *, is_folded: bool = False) -> Utterance:
    """Returns the parts of a text. See `split_speaker` for folded texts."""
    speaker, spoken = split_speaker(text, is_folded=is_folded)
    if not _QUESTION_MARK.search(spoken):
        return Utterance(speaker, spoken, "", spoken, False)
    questions: list[str] = []
    statements: list[str] = []
    start = 0
    for mark in _SENTENCE.finditer(spoken):
        sentences = questions if _QUESTION_MARK.search(mark[0]) else statements
        sentences.append(spoken[start : mark.end()].strip())
        start = mark.end()
    statements.append(spoken[start:].strip())
    marks_at_the_end = takewhile(lambda character: _WORD_CHARACTER.match(character) is None, reversed(spoken))
    return Utterance(
        speaker,
        spoken,
        "\n".join(filter(None, questions)),
        "\n".join(filter(None, statements)),
        any(_QUESTION_MARK.match(mark) for mark in marks_at_the_end),
    )


_GAP: Final = re.compile(r"[\W_]+")


def normalized(text: str) -> str:
    """Returns the letters and digits of a text in lower case, with single spaces between words.

    The name of the speaker is left out. A text without letters and digits is returned without spaces around it.
    """
    folded = normal_form("NFKC", text).casefold()
    spoken = split_speaker(folded, is_folded=True)[1].strip()
    return _GAP.sub(" ", spoken).strip() or spoken


def fingerprint(text: str) -> str:
    """Returns 16 hexadecimal digits that are the same for texts that are equal when normalized."""
    return blake2b(normalized(text).encode(errors="replace"), digest_size=8).hexdigest()
