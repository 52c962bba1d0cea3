"""The features of versions of the server, and the replacements on older ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mnemesh_retrieval.errors import VectorIndexError
from mnemesh_retrieval.index import Payload
from mnemesh_retrieval.words.cjk import CJK_RUN

OLDEST_VERSION: Final = (1, 16)
_UPDATE_MODES: Final = (1, 17)
_SUBSTRINGS: Final = (1, 20)
_RUNS_PREFIX: Final = "_cjk_"
_BETWEEN_RUNS: Final = " 0 "
"""A word between two runs, so that no phrase reaches from one into the next."""


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a server.

    `update_modes`: writes of only absent or only present points. `substrings`: conditions on characters that a text
    contains. A server without these conditions gets, beside each text field, a field with the runs of CJK characters,
    each character as a word; a run is then found as a phrase.
    """

    update_modes: bool = True
    substrings: bool = True

    @classmethod
    def of(cls, version: str) -> Features:
        """Returns the features of a version, such as `1.18.3`. Raises VectorIndexError if it is too old."""
        numbers = tuple(int(number) for number in version.split("-", maxsplit=1)[0].split(".")[:2])
        if numbers < OLDEST_VERSION:
            oldest = ".".join(map(str, OLDEST_VERSION))
            raise VectorIndexError(f"the Qdrant server has version {version}; it must be {oldest} or newer")
        return cls(numbers >= _UPDATE_MODES, numbers >= _SUBSTRINGS)


def runs_field(field: str) -> str:
    """Returns the name of the field with the runs of a text field."""
    return _RUNS_PREFIX + field


def runs_as_words(text: str) -> str:
    """Returns the runs of CJK characters in a text, each character as a word."""
    return _BETWEEN_RUNS.join(" ".join(run) for run in CJK_RUN.findall(text))


def with_runs(payload: Payload, text_fields: tuple[str, ...]) -> dict[str, object]:
    """Returns a payload with the runs of its text fields."""
    texts = {name: payload[name] for name in text_fields if name in payload}
    runs = {runs_field(name): runs_as_words(text) if isinstance(text, str) else "" for name, text in texts.items()}
    return {**payload, **runs}


def without_runs(payload: Payload) -> dict[str, object]:
    """Returns a payload of the server without the fields that `with_runs` adds."""
    return {name: value for name, value in payload.items() if not name.startswith(_RUNS_PREFIX)}
