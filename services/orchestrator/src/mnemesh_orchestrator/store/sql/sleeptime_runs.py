"""The start of sleeptime runs: the counters of a group, and one run at the end of each member's queue."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.ids import derive_id

from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import ConversationState
from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group
from mnemesh_orchestrator.model.lineage import Lineage, RunOrigin
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.sleeptime import (
    DEFAULT_MAX_STEPS,
    SleeptimeProgress,
    SleeptimeTurn,
    TranscriptRange,
    due_at,
    has_timers,
    processed_by,
    range_after_turn,
)
from mnemesh_orchestrator.store.sql.group_rows import VISIBLE_STATES, decode_document
from mnemesh_orchestrator.store.sql.run_insertion import insert_run
from mnemesh_orchestrator.store.sql.run_rows import decode_run
from mnemesh_orchestrator.store.sql.tables import agents, conversations, group_members, groups, runs

_g = groups.c
_SEQUENCE: Final = sa.bindparam("new_sequence", type_=sa.BigInteger)
_COUNT_TURN: Final = (
    groups.update()
    .where(
        _g.manager_agent_id == sa.bindparam("p_agent"),
        _g.manager_type.in_(BACKGROUND_TYPES),
        _g.state.in_(VISIBLE_STATES),
    )
    .values(
        turns_counter=_g.turns_counter + 1,
        seen_sequence_id=sa.case((_g.seen_sequence_id < _SEQUENCE, _SEQUENCE), else_=_g.seen_sequence_id),
        last_turn_at=sa.bindparam("new_last_turn_at", type_=_g.last_turn_at.type),
    )
    .returning(
        _g.document,
        _g.turns_counter,
        _g.seen_sequence_id,
        _g.processed_sequence_id,
        _g.last_turn_at,
        _g.last_sleeptime_at,
    )
)
_MEMBERS: Final = (
    sa.select(agents.c.id.label("agent_id"), conversations.c.id.label("conversation_id"))
    .select_from(group_members)
    .join(agents, agents.c.id == group_members.c.agent_id)
    .join(conversations, sa.and_(conversations.c.agent_id == agents.c.id, conversations.c.is_default))
    .where(
        group_members.c.group_id == sa.bindparam("p_group"),
        agents.c.state == AgentState.ACTIVE,
        conversations.c.state == ConversationState.ACTIVE,
    )
    .order_by(group_members.c.position)
)
_TAKE_NUMBER: Final = (
    conversations.update()
    .where(conversations.c.id == sa.bindparam("p_id"))
    .values(next_queue_number=conversations.c.next_queue_number + 1)
    .returning(conversations.c.next_queue_number - 1)
)
_ADVANCE: Final = (
    groups.update()
    .where(_g.id == sa.bindparam("p_group"))
    .values(
        processed_sequence_id=sa.bindparam("new_processed", type_=sa.BigInteger),
        last_sleeptime_at=sa.bindparam("new_last_sleeptime_at", type_=_g.last_sleeptime_at.type),
        sleeptime_due_at=sa.bindparam("new_due_at", type_=_g.sleeptime_due_at.type),
    )
)
_SET_DUE: Final = (
    groups.update()
    .where(_g.id == sa.bindparam("p_group"))
    .values(sleeptime_due_at=sa.bindparam("new_due_at", type_=_g.sleeptime_due_at.type))
)


def progress_of(row: Any) -> SleeptimeProgress:
    """Returns the progress of a row of `groups`."""
    return SleeptimeProgress(
        row.turns_counter, row.seen_sequence_id, row.processed_sequence_id, row.last_turn_at, row.last_sleeptime_at
    )


def start_after_turn(conn: sa.Connection, turn: Run, facts: SleeptimeTurn) -> tuple[Run, ...]:
    """Counts a completed turn of a manager, and stores the runs that it starts. Returns them in the members' order.

    The ids of the runs are derived from the turn. `turn` has its time of completion.
    """
    now = turn.completed_at or turn.updated_at
    parameters = {"p_agent": facts.agent_id, "new_sequence": facts.newest_sequence_id, "new_last_turn_at": now}
    row = conn.execute(_COUNT_TURN, parameters).first()
    if row is None:
        return ()
    group, progress = decode_document(row.document), progress_of(row)
    range_ = range_after_turn(group, progress, facts)
    lineage = Lineage(turn.id, RunOrigin.SLEEPTIME, depth=turn.lineage.depth + 1)
    started: tuple[Run, ...] = ()
    if range_ is not None:
        started = start_members(
            conn, group, range_, lineage, turn.subject_id, now, lambda id_: derive_id("run", turn.id, id_)
        )
    if not started and has_timers(group.manager):
        set_due(conn, group.id, due_at(group, progress))
    return started


def start_members(
    conn: sa.Connection,
    group: Group,
    range_: TranscriptRange,
    lineage: Lineage,
    subject_id: str,
    now: datetime,
    run_id: Callable[[str], str],
) -> tuple[Run, ...]:
    """Stores a run of each member for a range of messages, and notes that the range is processed.

    Members that are deleted, or not created yet, are left out. If none remains, nothing is stored.

    Args:
        conn: The transaction.
        group: The group; its members are read.
        range_: The messages.
        lineage: Where the runs come from.
        subject_id: The subject on whose behalf they run.
        now: The time.
        run_id: Returns the id of the run of a member.
    """
    members = conn.execute(_MEMBERS, {"p_group": group.id}).all()
    if not members:
        return ()
    config = RunConfig(max_steps=group.manager.max_steps or DEFAULT_MAX_STEPS)
    started = tuple(
        Run(
            id=run_id(member.agent_id),
            organization_id=group.organization_id,
            subject_id=subject_id,
            agent_id=member.agent_id,
            conversation_id=member.conversation_id,
            created_at=now,
            updated_at=now,
            input=(),
            config=config,
            background=True,
            group_id=group.id,
            lineage=lineage,
            transcript=range_,
        )
        for member in members
    )
    for run in started:
        number = conn.execute(_TAKE_NUMBER, {"p_id": run.conversation_id}).scalar_one()
        insert_run(conn, None, run, number)
    advance = {"new_processed": processed_by(range_), "new_last_sleeptime_at": now, "new_due_at": None}
    conn.execute(_ADVANCE, {"p_group": group.id, **advance})
    return started


def set_due(conn: sa.Connection, group_id: str, due: datetime | None) -> None:
    """Stores the time at which the interval or the inactivity of a group is to be checked."""
    conn.execute(_SET_DUE, {"p_group": group_id, "new_due_at": due})


def with_children(run: Run, started: Sequence[Run]) -> Run:
    """Returns a run with the runs that its end started."""
    return replace(run, child_run_ids=(*run.child_run_ids, *(child.id for child in started))) if started else run


def started_by(conn: sa.Connection, run: Run) -> tuple[Run, ...]:
    """Returns the sleeptime runs that the end of a run started, in their order."""
    query = sa.select(runs).where(runs.c.id.in_(run.child_run_ids), runs.c.origin == RunOrigin.SLEEPTIME)
    found = {row.id: decode_run(row) for row in conn.execute(query)} if run.child_run_ids else {}
    return tuple(found[id_] for id_ in run.child_run_ids if id_ in found)
