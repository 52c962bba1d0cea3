"""The table of compaction modes: how the cut is chosen, who summarizes, when it starts, and the fallback."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Final

from mnemesh_orchestrator.compaction.planner import Planner, plan_all, plan_sliding, plan_whole_turns
from mnemesh_orchestrator.model.compaction import CompactionSettings

DEFAULT_SHARE: Final = 0.3
DEFAULT_CLIP_CHARS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Mode:
    """A row of the table. `planner` chooses the cut. `summarizer` is a key of the compactor's summarizers. `fallback`
    is the mode that is tried next; with `fallback_keeps_cut` it evicts the same messages.
    """

    name: str
    planner: Planner
    summarizer: str
    fallback: str | None
    trigger_ratio: float = 0.9
    fallback_keeps_cut: bool = False
    shows_memory: bool = False
    """The head of the window shows episodes and facts, also if a fallback writes the summary."""


MODES: Final[Mapping[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("sliding_window", plan_sliding, "transcript", "all"),
        Mode("all", plan_all, "transcript", None),
        Mode("self_compact_sliding_window", plan_sliding, "self", "sliding_window"),
        Mode("self_compact_all", plan_all, "self", "all"),
        Mode(
            "episodic",
            plan_whole_turns,
            "episodic",
            "sliding_window",
            trigger_ratio=0.8,
            fallback_keeps_cut=True,
            shows_memory=True,
        ),
    )
}


def mode_of(settings: CompactionSettings | None) -> Mode:
    """Returns the mode of an agent's settings. A mode that this version does not know is sliding_window."""
    return MODES.get(settings.mode if settings else "sliding_window", MODES["sliding_window"])


def fallback_chain(mode: Mode) -> tuple[Mode, ...]:
    """Returns a mode and its fallbacks in order. After the last, the digest needs no model."""
    modes = [mode]
    while (name := modes[-1].fallback) is not None:
        fallback_mode = MODES[name]
        modes.append(
            replace(fallback_mode, planner=modes[-1].planner) if modes[-1].fallback_keeps_cut else fallback_mode
        )
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


def effective_settings(settings: CompactionSettings | None, overrides: CompactionSettings | None) -> CompactionSettings:
    """Returns an agent's settings, overridden by those of one request. An empty mode overrides nothing."""
    settings = settings or CompactionSettings()
    if overrides is None:
        return settings
    values = {f.name: value for f in fields(overrides) if (value := getattr(overrides, f.name)) not in (None, "")}
    return replace(settings, **values)
