"""The constants of the ranking, and their file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from mnemesh_retrieval.embedder import Embedder
from mnemesh_retrieval.errors import RankingMisconfigured
from mnemesh_retrieval.words.sparse import LENGTH_SHARE, SATURATION

_MAX_CANDIDATES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingConstants:
    """The constants of the ranking. The defaults were fitted on dialogues of two people; see docs/retrieval.md.

    A share is the part of a word's weight, or of a similarity, that a text receives from a neighbour. Shares are
    between 0 and 1, factors above 0.

    Raises:
        RankingMisconfigured: a value is out of range.
    """

    saturation: float = SATURATION
    """BM25's k1: how slowly further occurrences of a word stop counting."""
    length_share: float = LENGTH_SHARE
    """BM25's b. Turns of a dialogue are short: with 0.75, which suits pages, the shortest would win."""
    question_share: float = 1.0
    """The share that a text receives of the words in question sentences of the text before it."""
    before_share: float = 0.5
    """The share that a text receives of the other words of the text before it."""
    second_before_share: float = 0.3
    """The share that a text receives of the words of the text at distance two before it."""
    after_share: float = 0.4
    """The share that a text receives of the words of the text after it."""
    second_after_share: float = 0.2
    """The share that a text receives of the words of the text at distance two after it."""
    neighbour_hours: float = 6.0
    """The longest time between two neighbours, in hours."""
    question_factor: float = 0.85
    """The factor of a text that ends in a question."""
    speaker_factor: float = 1.25
    """The factor of a text whose speaker the query names."""
    word_candidates: int = 100
    """The number of best texts by words that are fused."""
    similarity_candidates: int = 50
    """The number of best texts by similarity that are fused."""
    similarity_after_question: float = 0.6
    """The share that a text receives of the similarity of the text before it, if that asks a question."""
    similarity_before: float = 0.3
    """The share that a text receives of the similarity of the text before it otherwise."""
    similarity_after: float = 0.15
    """The share that a text receives of the similarity of the text after it."""
    time_factor: float = 1.3
    """The factor of a text from a day or a range of time that the query names."""
    time_fade_days: float = 7.0
    """The days after such a range over which the factor falls to 1."""
    similarity_weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of embedders by handle, where they differ from the embedders' own; between 0 and 10."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name != "similarity_weights":
                _require_valid(each.name, getattr(self, each.name))
        _require_weights(self.similarity_weights)

    def similarity_weight(self, embedder: Embedder) -> float:
        """Returns the weight of an embedder's similarities, where words weigh 1."""
        return self.similarity_weights.get(embedder.handle, embedder.similarity_weight)

    def to_json(self) -> str:
        """Returns the content of a file that `load_constants` reads."""
        return json.dumps(asdict(self), indent=2) + "\n"


def load_constants(path: Path | str) -> RankingConstants:
    """Reads constants from a JSON object. A constant that it lacks has its default; "" means no file.

    Raises:
        RankingMisconfigured: the file cannot be read, or names an unknown constant or a value out of range.
    """
    if not str(path):
        return DEFAULTS
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RankingMisconfigured(f"The ranking file {path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise RankingMisconfigured(f"The ranking file {path} is not a JSON object.")
    unknown = sorted(content.keys() - {each.name for each in fields(RankingConstants)})
    if unknown:
        raise RankingMisconfigured(f"The ranking file {path} has unknown constants: {', '.join(unknown)}.")
    return RankingConstants(**content)


def _require_valid(name: str, value: Any) -> None:
    kind = int if name.endswith("_candidates") else float
    noun = "an integer" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int | kind) or not math.isfinite(value):
        raise RankingMisconfigured(f"The ranking constant {name} must be {noun}, not {value!r}.")
    if name.endswith("_candidates"):
        lowest, highest = 1.0, float(_MAX_CANDIDATES)
    elif name.endswith("_factor"):
        lowest, highest = 0.1, 10.0
    elif name in ("saturation", "neighbour_hours", "time_fade_days"):
        lowest, highest = 0.0, 1e4
    else:
        lowest, highest = 0.0, 1.0
    if not lowest <= value <= highest:
        raise RankingMisconfigured(f"The ranking constant {name} is not between {lowest:g} and {highest:g}: {value!r}.")


def _require_weights(weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise RankingMisconfigured("The ranking constant similarity_weights is not an object of handles and numbers.")
    for handle, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 10:
            raise RankingMisconfigured(f"The similarity weight of {handle} is not between 0 and 10: {weight!r}.")


DEFAULTS: Final = RankingConstants()
