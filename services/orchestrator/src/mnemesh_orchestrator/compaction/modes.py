"""The table of compaction modes: how the cut is chosen, who summarizes, when it starts, and the fallback."""

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
    """A row of the table. `writer` names the summarizer; `falls_back_to` the mode that is tried next.

    `lends_plan` means that the next mode evicts the same messages.
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
    """Returns the mode of an agent's settings. A mode that this version does not know is sliding_window."""
    return MODES.get(settings.mode if settings else "sliding_window", MODES["sliding_window"])


def chain(mode: Mode) -> tuple[Mode, ...]:
    """Returns a mode and its fallbacks in order. After the last, the digest needs no model."""
    modes = [mode]
    while (following := modes[-1].falls_back_to) is not None:
        stand_in = MODES[following]
        modes.append(replace(stand_in, plan=modes[-1].plan) if modes[-1].lends_plan else stand_in)
    return tuple(modes)


def trigger_ratio(settings: CompactionSettings | None) -> float:
    """Returns the share of a model's budget at which compaction starts."""
    if settings is not None and settings.trigger_ratio is not None:
        return settings.trigger_ratio
    return mode_of(settings).trigger_ratio


def trigger_tokens(ratio: float, budget: int) -> int:
    """Returns the number of tokens at which compaction starts: the share of a budget, rounded up.

    Without a budget, every window reaches it.
    """
    return ceil(round(ratio * max(0, budget), 6))


def effective(agent: CompactionSettings | None, given: CompactionSettings | None) -> CompactionSettings:
    """Returns an agent's settings, overridden by those of one request. An empty mode overrides nothing."""
    settings = agent or CompactionSettings()
    if given is None:
        return settings
    own = {f.name: value for f in fields(given) if (value := getattr(given, f.name)) not in (None, "")}
    return replace(settings, **own)
