"""The transcript of a sleeptime run, which becomes its input when it begins."""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.sleeptime import processed_by
from mnemesh_orchestrator.store.sql.run_insertion import insert_run
from mnemesh_orchestrator.store.sql.run_journal import record_run
from mnemesh_orchestrator.store.sql.run_rows import decode_run, encode_document
from mnemesh_orchestrator.store.sql.tables import groups, runs

_FIND: Final = sa.select(runs).where(runs.c.id == sa.bindparam("p_id"))


def store_transcript(
    conn: sa.Connection,
    lease: Lease,
    run: Run,
    events: Sequence[RunEvent],
    rest: Run | None,
    last_message_id: str | None,
) -> Run:
    """See RunStore.store_transcript. The lease is held."""
    row = conn.execute(_FIND, {"p_id": run.id}).one()
    stored = decode_run(row)
    if stored.input:
        return stored
    values: dict[str, object] = {"document": encode_document(run)}
    if rest is not None:
        # The rest takes the place of the run in the queue, so that later transcripts follow it.
        values["queue_number"] = row.queue_number - 1
        insert_run(conn, None, rest, row.queue_number)
    conn.execute(runs.update().where(runs.c.id == run.id).values(values))
    record_run(conn, lease, (), events)
    range_ = run.transcript
    if range_ is not None and rest is None and last_message_id is not None:
        # A run of an earlier range may begin later, in the queue of another member.
        newest = sa.and_(groups.c.id == range_.group_id, groups.c.processed_sequence_id == processed_by(range_))
        conn.execute(groups.update().where(newest).values(last_processed_message_id=last_message_id))
    return run
