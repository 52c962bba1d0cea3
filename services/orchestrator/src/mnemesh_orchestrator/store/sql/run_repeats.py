"""Runs that repeat earlier ones: the same request, the same messages, and retries of the same input."""

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.errors import RunUnderWay
from mnemesh_orchestrator.model.inputs import KnownMessage, repeated_run_id
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.sql import turn_statements as sql
from mnemesh_orchestrator.store.sql.run_rows import decode_run


def find_repeated_run(conn: sa.Connection, key: RequestKey | None, run: Run) -> Run | None:
    """See RunStore.find_repeated."""
    if key is not None:
        request = {"p_organization": key.organization_id, "p_method": key.method, "p_request": key.request_id}
        row = sql.RUN_BY_REQUEST.first(conn, request)
        if row is not None and row.request_fingerprint != key.fingerprint:
            raise RequestIdReused(
                "This request_id was used before with other content.", field="request_id", request_id=key.request_id
            )
        if row is not None:
            return decode_run(row)
    otids = [item.otid for item in run.sent if item.otid]
    if not otids:
        return None
    messages = {"p_organization": run.organization_id, "p_conversation": run.conversation_id, "p_otids": otids}
    known = {
        row.otid: KnownMessage(row.run_id, row.message_hash, row.input_hash)
        for row in conn.execute(sql.KNOWN_OTIDS, messages)
    }
    run_id = repeated_run_id(run.sent, known)
    return None if run_id is None else _run(conn, run.organization_id, run_id)


def find_child_run(conn: sa.Connection, run: Run) -> Run | None:
    """Returns the run with the id of a run that another run starts, if it was stored before. Its id is derived."""
    return _find(conn, run.organization_id, run.id)


def find_asking_run(conn: sa.Connection, organization_id: str, run_id: str) -> Run | None:
    """Returns the run that stopped for an approval, or None if it was deleted."""
    return _find(conn, organization_id, run_id)


def newest_attempt(conn: sa.Connection, organization_id: str, run_id: str) -> Run:
    """See RunStore.newest_attempt."""
    run = _run(conn, organization_id, run_id)
    return _newest_retry(conn, organization_id, run.first_run_id) or run


def require_newest_attempt(conn: sa.Connection, run: Run) -> None:
    """Raises RunUnderWay if the input of a retry has been retried by another run since the retry was requested."""
    newest = _newest_retry(conn, run.organization_id, run.first_run_id)
    if newest is not None and newest.id != run.retried_run_ids[0]:
        raise RunUnderWay("Another request has retried the run. Follow its run.", resource_id=newest.id)


def _run(conn: sa.Connection, organization_id: str, run_id: str) -> Run:
    run = _find(conn, organization_id, run_id)
    if run is None:
        raise NotFound(f"There is no run {run_id}.", resource_id=run_id)
    return run


def _find(conn: sa.Connection, organization_id: str, run_id: str) -> Run | None:
    row = conn.execute(sql.RUN_BY_ID, {"p_organization": organization_id, "p_run": run_id}).first()
    return None if row is None else decode_run(row)


def _newest_retry(conn: sa.Connection, organization_id: str, first_run_id: str) -> Run | None:
    row = conn.execute(sql.NEWEST_RETRY, {"p_organization": organization_id, "p_run": first_run_id}).first()
    return None if row is None else decode_run(row)
