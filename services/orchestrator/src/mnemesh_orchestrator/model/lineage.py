"""The relations between runs: the origin of a run, and the runs that wait for it."""

from dataclasses import dataclass
from enum import StrEnum


class RunOrigin(StrEnum):
    """The cause of a run."""

    CLIENT = "client"
    GROUP = "group"
    """A run of a group: the turn of a member or of the manager."""
    AGENT = "agent"
    """A tool call of another agent."""
    SLEEPTIME = "sleeptime"
    """The messages of another agent, whose memory the run maintains."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run that waits for another one. `agent_id` is empty for a run of a group."""

    run_id: str
    conversation_id: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """The runs that led to a run.

    `ancestors` are the runs that wait for it, outermost first; they hold their conversations meanwhile. `depth` is the
    number of runs that led to it, those that do not wait for it included.
    """

    parent_run_id: str | None = None
    origin: RunOrigin = RunOrigin.CLIENT
    ancestors: tuple[Ancestor, ...] = ()
    depth: int = 0
    supervised_agent_ids: tuple[str, ...] = ()
    """The members of a supervisor's group, if the run is the supervisor's turn."""
