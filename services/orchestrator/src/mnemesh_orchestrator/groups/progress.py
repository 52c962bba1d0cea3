"""The progress of a group run: the turns that have ended, and the events of its agents that it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mnemesh_types.usage import Usage

from mnemesh_orchestrator.groups.speakers import LastTurn, NextTurn, next_turn
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.model.events import MemberEvent, MemberTurnEnded, MemberTurnStarted
from mnemesh_orchestrator.model.groups import GroupPlan, MemberTurn
from mnemesh_orchestrator.model.journal import EndedTurn, EntryKind
from mnemesh_orchestrator.model.runs import Run, StopReason
from mnemesh_orchestrator.store.base import RunStore

_BATCH: Final = 200


@dataclass(slots=True)
class Progress:
    """The stored state of a group run.

    `open_turn` is the number of the turn whose MemberTurnStarted is stored and whose end is not. `forwarded` holds the
    newest sequence number that was forwarded, by run of an agent.
    """

    plan: GroupPlan
    ended: dict[int, EndedTurn] = field(default_factory=dict)
    open_turn: int | None = None
    forwarded: dict[str, int] = field(default_factory=dict)

    @property
    def turns(self) -> list[MemberTurn]:
        """The turns in the order in which they ended: those of earlier attempts first."""
        return [*self.plan.completed, *(item.turn for item in self.ended.values())]

    @property
    def by_number(self) -> list[EndedTurn]:
        """The turns of this run and of earlier attempts in the order of their numbers."""
        earlier = {turn.number: EndedTurn(turn, StopReason.END_TURN) for turn in self.plan.completed}
        return [item for _, item in sorted((earlier | self.ended).items())]

    def next(self) -> NextTurn | LastTurn:
        """Returns the first turn that has not ended, or the last turn if none follows."""
        known: Mapping[int, EndedTurn] = {item.turn.number: item for item in self.by_number}
        turns: list[MemberTurn] = []
        while isinstance(step := next_turn(self.plan, turns), NextTurn) and step.number in known:
            turns.append(known[step.number].turn)
        return step

    @property
    def usage(self) -> Usage:
        """The sum of the turns of this run."""
        return sum((item.usage for item in self.ended.values()), Usage())

    @property
    def step_count(self) -> int:
        """The number of steps of the turns of this run."""
        return sum(item.step_count for item in self.ended.values())


async def stored_progress(store: RunStore, journal: JournalWriter, run: Run, plan: GroupPlan) -> Progress:
    """Returns the progress of a run as it is stored."""
    await journal.reload()
    entries = [entry.turn for entry in journal.entries.values() if entry.kind is EntryKind.TURN]
    ended = {item.turn.number: item for item in entries if item is not None}
    progress, last = Progress(plan, dict(sorted(ended.items()))), 0
    while batch := await store.events(run.id, last, _BATCH):
        for event in batch:
            last = event.sequence or 0
            if isinstance(event.body, MemberEvent):
                _read(progress, event.body)
    return progress


def _read(progress: Progress, event: MemberEvent) -> None:
    match event.body:
        case MemberTurnStarted(number):
            progress.open_turn = number
        case MemberTurnEnded():
            progress.open_turn = None
        case _:
            progress.forwarded[event.run_id] = event.sequence
