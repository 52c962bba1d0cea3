"""Ending a turn that was cancelled, so that its history stays valid."""

from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import ToolReturn, ToolStatus
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.loop import approvals
from mnemesh_orchestrator.loop import step_messages as answers
from mnemesh_orchestrator.loop.policy import Verdict
from mnemesh_orchestrator.loop.state import Answered, Turn, committed
from mnemesh_orchestrator.loop.step_commit import StepCommitter, journalled, step_messages
from mnemesh_orchestrator.loop.step_records import conclude, new_step
from mnemesh_orchestrator.loop.tool_calls import Carried
from mnemesh_orchestrator.model.approvals import open_request
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry, JournalledAnswer
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.model.steps import StepStatus
from mnemesh_orchestrator.store.base import RunStore


class TurnCanceller:
    """Commits what a cancelled turn leaves half done, with a return for every call."""

    def __init__(self, store: RunStore, writer: StepCommitter, clock: Clock) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock

    async def cancel(self, turn: Turn) -> None:
        """Leaves a valid history behind: a step whose answer is journalled is committed with what its tools came to.

        A commit that was cut off is made again: nobody knows whether it took place.
        """
        if turn.committing is not None:
            step = turn.committing
            await self._writer.commit(turn, step.answered, step.messages)
            if step.answered.step.number:
                conclude(turn, step.answered.step, step.answered.answer.usage, StopReason.CANCELLED, self._clock.now())
            await self._close(turn)
            return
        # Of calls that waited it also knows what runs before this one came to.
        entries = await self._store.journal(turn.run.id)
        turn.journal = {**turn.journal, **{(entry.step_id, entry.kind, entry.ordinal): entry for entry in entries}}
        # Of a run that was taken up the journal may be ahead of what was carried out again.
        turn.progress.number = max(turn.progress.number, 1)
        while (entry := turn.entry(answers.step_id(turn.run.id, turn.progress.number), EntryKind.ANSWER)) is not None:
            if not committed(turn, entry.step_id):
                await self._commit_cancelled(turn, entry)
            turn.progress.number += 1
        await self._close(turn)

    async def _close(self, turn: Turn) -> None:
        """Closes the request for approval that a cancelled turn was to answer, or had just made."""
        request = open_request(turn.window.messages)
        if request is None:
            return
        step_id, resumption = request.caller.step_id or "", turn.run.resumes
        known = {}
        for ordinal, call in enumerate(request.caller.tool_calls):
            entry = turn.entry(step_id, EntryKind.RESULT, ordinal)
            if entry is not None and entry.result is not None:
                known[call.id] = entry.result
        decisions = resumption.decisions if resumption is not None and not resumption.withdrawn else ()
        step = replace(new_step(turn, derive_id("step", turn.run.id, "closing"), self._clock.now()), number=0)
        answer = JournalledAnswer(request.caller, (), Usage(), turn.window.version, None)
        messages = approvals.closing(turn.run, request, known, decisions)
        await self._writer.commit(turn, Answered(answer, (), journalled=True, step=step), messages)

    async def _commit_cancelled(self, turn: Turn, entry: JournalEntry) -> None:
        step_id, answered = entry.step_id, journalled(turn, entry, self._clock.now())
        carried = []
        for item in answered.planned:
            known = turn.entry(step_id, EntryKind.RESULT, item.ordinal)
            result = known.result if known is not None else None
            cancelled = ToolReturn.from_text(item.call.id, item.call.name, ToolStatus.ERROR, approvals.CANCELLED)
            carried.append(Carried(item, result or cancelled, known.at if known is not None else entry.at))
        messages = step_messages(turn, answered, tuple(carried), Verdict(StopReason.CANCELLED))
        await self._writer.commit(turn, answered, messages)
        conclude(
            turn,
            answered.step,
            answered.answer.usage,
            StopReason.CANCELLED,
            self._clock.now(),
            StepStatus.CANCELLED,
        )
