"""The end of a run as it is stored: whole, or in a smaller form if the store refuses the whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mnemesh_kit.errors import INTERNAL_TEXT
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.agents import Correction
from mnemesh_orchestrator.model.approvals import Approval
from mnemesh_orchestrator.model.events import DurableBody, ErrorEvent, RunEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.runs import Run, RunError, RunStatus, StopReason
from mnemesh_orchestrator.model.sleeptime import SleeptimeTurn
from mnemesh_orchestrator.model.steps import Step, StepTrace

_DEFECT = RunError("INTERNAL", INTERNAL_TEXT)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """An ended run and what is stored with it. `unstored` are events that were published and not stored yet."""

    run: Run
    bodies: tuple[DurableBody, ...]
    unstored: tuple[RunEvent, ...] = ()
    steps: Sequence[Step] = ()
    traces: Sequence[StepTrace] = ()
    approval: Approval | None = None
    corrections: Sequence[Correction] = ()
    sleeptime: SleeptimeTurn | None = None
    """The completed turn of an agent with partners."""
    extraction_turns: int | None = None
    """For a completed turn that counts: the number of turns after which facts are extracted."""

    @property
    def forms(self) -> tuple["RunEnd", ...]:
        """The forms in which the end is stored: each is tried if the store refuses the one before."""
        minimal = self.minimal()
        forms = (self, self.without_records(), minimal)
        return forms if self.sleeptime is None else (*forms, replace(minimal, sleeptime=None))

    def without_records(self) -> "RunEnd":
        """Returns the end without steps, traces and corrections."""
        return replace(self, steps=(), traces=(), corrections=())

    def minimal(self) -> "RunEnd":
        """Returns the status and the stop reason, and a fixed text in place of the error. A store can always hold it.

        Without its approval a run cannot wait, so it has failed.
        """
        run = self.run
        if self.approval is not None:
            run = replace(run, status=RunStatus.FAILED, stop_reason=StopReason.ERROR, error=_DEFECT)
        elif run.error is not None:
            run = replace(run, error=_DEFECT)
        run = replace(run, usage=Usage(), first_token_ms=None)
        bodies: tuple[DurableBody, ...] = () if run.error is None else (ErrorEvent(run.error),)
        stop = StopEvent(run.stop_reason or StopReason.ERROR, run.status)
        bodies = (*bodies, stop, UsageEvent(run.usage, run.step_count))
        return RunEnd(run, bodies, sleeptime=self.sleeptime, extraction_turns=self.extraction_turns)
