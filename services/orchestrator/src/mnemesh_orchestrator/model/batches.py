"""Batches: background runs that were started together."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mnemesh_kit.errors import InvalidArgument

from mnemesh_orchestrator.model.inputs import CallbackResult, InputMessage, OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import RunStatus

MAX_REQUESTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One run of a batch that is to be started."""

    agent_id: str
    conversation_id: str
    messages: tuple[InputMessage, ...]
    config: RunConfig


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """A batch that is to be stored with its runs."""

    id: str
    organization_id: str
    subject_id: str
    created_at: datetime
    callback_url: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with the numbers of its runs by status."""

    id: str
    created_at: datetime
    runs: Mapping[RunStatus, int]
    was_cancelled: bool = False
    last_end: datetime | None = None
    """The time of the newest end of a run."""
    callback: CallbackResult | None = None

    @property
    def unfinished(self) -> int:
        """The number of runs that wait or run."""
        return sum(count for status, count in self.runs.items() if not status.ended)

    @property
    def status(self) -> RunStatus:
        """RUNNING until all runs have ended."""
        if self.unfinished:
            return RunStatus.RUNNING
        if self.was_cancelled:
            return RunStatus.CANCELLED
        return RunStatus.COMPLETED if self.runs.get(RunStatus.COMPLETED) else RunStatus.FAILED

    @property
    def completed_at(self) -> datetime | None:
        """The time at which the last run ended."""
        return None if self.unfinished else self.last_end


def require_valid_requests(count: int) -> None:
    """Raises InvalidArgument if a batch has no request, or too many."""
    if not 1 <= count <= MAX_REQUESTS:
        raise InvalidArgument(f"requests must have 1 to {MAX_REQUESTS:,} requests.", field="requests")


def require_batch_config(config: RunConfig, field: str) -> None:
    """Raises InvalidArgument if the config of a run has what only a run of its own can have."""
    if config.callback_url is not None:
        raise InvalidArgument(f"{field}.callback_url must be absent: the batch has one.", field=f"{field}.callback_url")
    if config.on_busy is OnBusy.REJECT:
        raise InvalidArgument(f"{field}.on_busy must not be REJECT: the runs wait.", field=f"{field}.on_busy")
