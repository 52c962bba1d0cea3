"""Runs that other runs started, as the store knows them."""

from dataclasses import dataclass

from mnemesh_orchestrator.model.runs import RunStatus, StopReason


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run that another run started. `is_awaited` is true if that one waits for its end."""

    id: str
    agent_id: str
    status: RunStatus
    stop_reason: StopReason | None
    is_awaited: bool


@dataclass(frozen=True, slots=True)
class Continuation:
    """The outcome of the approval for which a run stopped.

    `run_id` is the run that answered it. It is None while the approval is pending, and if no one can answer it any
    more.
    """

    is_pending: bool
    run_id: str | None = None
