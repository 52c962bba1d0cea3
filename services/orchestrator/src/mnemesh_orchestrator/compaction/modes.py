"""The ways to compact, as a table: how the cut is chosen, who writes, when it starts, and what stands in on failure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Final

from mnemesh_orchestrator.compaction.planner import Planner, sliding, turns, whole
from mnemesh_orchestrator.model.compaction import CompactionSettings

DEFAULT_SHARE: Final = 0.3
DEFAULT_CLIP_CHARS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Mode:
    """A row of the table. `writer` names who writes the summary; `falls_back_to` the mode that is tried next.

    `lends_plan` says that the next one evicts the same.
    """

    name: str
    plan: Planner
    writer: str
    falls_back_to: str | None
    trigger_ratio: float = 0.9
    lends_plan: bool = False


MODES: Final[Mapping[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("sliding_window", sliding, "transcript", "all"),
        Mode("all", whole, "transcript", None),
        Mode("self_compact_sliding_window", sliding, "self", "sliding_window"),
        Mode("self_compact_all", whole, "self", "all"),
        Mode("episodic", turns, "episodic", "sliding_window", trigger_ratio=0.8, lends_plan=True),
    )
}


def mode_of(settings: CompactionSettings | None) -> Mode:
    """The mode that an agent's settings name; a mode of another version of this server is sliding_window."""
    return MODES.get(settings.mode if settings else "sliding_window", MODES["sliding_window"])


def chain(mode: Mode) -> tuple[Mode, ...]:
    """A mode and those that stand in for it, in order. Behind the last stands the digest, which needs no model."""
    modes = [mode]
    while (following := modes[-1].falls_back_to) is not None:
        stand_in = MODES[following]
        modes.append(replace(stand_in, plan=modes[-1].plan) if modes[-1].lends_plan else stand_in)
    return tuple(modes)


def trigger_ratio(settings: CompactionSettings | None) -> float:
    """The share of a model's budget from which on compaction starts."""
    if settings is not None and settings.trigger_ratio is not None:
        return settings.trigger_ratio
    return mode_of(settings).trigger_ratio


def trigger_tokens(ratio: float, budget: int) -> int:
    """The least number of tokens that starts a compaction: the share of a budget, up to a whole token.

    Nothing is below it where there is no budget.
    """
    return ceil(round(ratio * max(0, budget), 6))


def effective(agent: CompactionSettings | None, given: CompactionSettings | None) -> CompactionSettings:
    """An agent's settings, with those that are given for once before them; an empty mode is none given."""
    settings = agent or CompactionSettings()
    if given is None:
        return settings
    own = {f.name: value for f in fields(given) if (value := getattr(given, f.name)) not in (None, "")}
    return replace(settings, **own)
