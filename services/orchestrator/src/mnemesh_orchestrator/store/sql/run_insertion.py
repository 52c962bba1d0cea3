"""The insertion of runs, with their otids and callbacks."""

import sqlalchemy as sa
from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.sql import turn_statements as sql
from mnemesh_orchestrator.store.sql.callback_rows import insert_callback
from mnemesh_orchestrator.store.sql.run_rows import microseconds, run_row


def insert_run(conn: sa.Connection, key: RequestKey | None, run: Run, queue_number: int) -> None:
    """Inserts a run with a number in the queue of its conversation, the otids of its input, and its callback."""
    order = {"p_organization": run.organization_id, "p_microseconds": microseconds(run.created_at)}
    sql.INSERT_RUN.change(conn, run_row(key, run, queue_number) | order)
    otids = [
        {
            "conversation_id": run.conversation_id,
            "otid": item.otid,
            "run_id": run.id,
            "message_hash": item.message_hash,
            "input_hash": item.input_hash,
        }
        for item in run.sent
        if item.otid
    ]
    if otids:
        conn.execute(sql.INSERT_OTID, otids)
    if run.config.callback_url is not None:
        insert_callback(conn, run, run.config.callback_url)
