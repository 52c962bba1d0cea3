"""Revision 0011: stored handles of the built-in model and embedders follow the product's name."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.databases.revisions import at_revision

TIME: Final = "2026-01-02 03:04:05.000000"
OLD: Final = "engram/rehearsal"
NEW: Final = "mnemesh/rehearsal"
TEXT: Final = '{"model":"engram/rehearsal"} is what I read.'


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'orchestrator.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = await server.create_database()
    yield server.url(name)
    await server.drop_database(name)


async def test_handles_that_select_a_model_later_are_renamed(url: str) -> None:
    database = await _upgraded(url)
    rows = await database.read(_documents)
    await database.close()
    agent = rows["agents", "agent-1", "document"]
    assert (agent["model"], agent["embedder"]) == (NEW, "mnemesh/wordllama-256")
    assert agent["compaction_settings"]["model"] == NEW
    assert agent["system"] == TEXT
    assert rows["agents", "agent-1", "corrections"] == [{"model": NEW, "factor": 1.5}]
    assert rows["agents", "agent-2", "creation"]["draft"] == {"model": NEW, "embedder": "mnemesh/hashing-256"}
    assert rows["conversations", "conv-1", "document"]["model"] == NEW
    for run in ("run-created", "run-failed"):
        assert rows["runs", run, "document"]["config"]["override_model"] == NEW
    assert rows["approvals", "message-pending", "document"]["config"]["override_model"] == NEW
    assert rows["model_overrides", "org-1", "document"] == {"handle": NEW, "hidden": True}


async def test_past_records_and_handles_of_own_providers_stay_unchanged(url: str) -> None:
    database = await _upgraded(url)
    rows = await database.read(_documents)
    await database.close()
    assert rows["runs", "run-completed", "document"]["config"]["override_model"] == OLD
    assert rows["approvals", "message-decided", "document"]["config"]["override_model"] == OLD
    assert rows["runs", "run-created", "document"]["input"] == [{"text": OLD}]
    assert rows["agents", "agent-own", "document"]["model"] == OLD
    assert rows["agents", "agent-other", "document"]["model"] == "engram/another"


async def _upgraded(url: str) -> Database:
    await at_revision(url, "mnemesh_orchestrator", "0010", _rows())
    database = Database.open(url)
    await database.migrate("mnemesh_orchestrator")
    return database


def _documents(conn: sa.Connection) -> dict[tuple[str, str, str], Any]:
    found = {}
    for table, key, columns in (
        ("agents", "id", ("document", "creation", "corrections")),
        ("conversations", "id", ("document",)),
        ("runs", "id", ("document",)),
        ("approvals", "id", ("document",)),
        ("model_overrides", "organization_id", ("document",)),
    ):
        names = sa.table(table, *(sa.column(name) for name in (key, *columns)))
        for row in conn.execute(sa.select(names)).mappings():
            for column in columns:
                if row[column] is not None:
                    found[table, row[key], column] = json.loads(bytes(row[column]))
    return found


def _document(content: Any) -> dict[str, str]:
    return {"bytes": json.dumps(content, separators=(",", ":"))}


def _rows() -> dict[str, list[dict[str, Any]]]:
    agent = {"model": OLD, "embedder": "engram/wordllama-256", "system": TEXT, "compaction_settings": {"model": OLD}}
    creation = {"draft": {"model": OLD, "embedder": "engram/hashing-256"}}
    config = {"config": {"override_model": OLD}}
    provider = {"id": "provider-1", "organization_id": "org-own", "name": "engram", "document": _document({})}
    override = {"organization_id": "org-1", "handle": OLD, "document": _document({"handle": OLD, "hidden": True})}
    return {
        "agents": [
            {**_agent("agent-1", agent), "corrections": _document([{"model": OLD, "factor": 1.5}])},
            {**_agent("agent-2", agent), "state": "creating", "creation": _document(creation)},
            {**_agent("agent-own", agent), "organization_id": "org-own"},
            _agent("agent-other", {"model": "engram/another"}),
        ],
        "conversations": [_conversation()],
        "runs": [
            _run("run-created", "created", {**config, "input": [{"text": OLD}]}, 1),
            _run("run-failed", "failed", config, 2),
            _run("run-completed", "completed", config, 3),
        ],
        "approvals": [_approval("message-pending", "pending", config), _approval("message-decided", "decided", config)],
        "providers": [{**provider, "created_at": TIME, "updated_at": TIME}],
        "model_overrides": [{**override, "updated_at": TIME}],
    }


def _agent(agent_id: str, document: Any) -> dict[str, Any]:
    fields = {"id": agent_id, "organization_id": "org-1", "name": agent_id, "type": "letta_v1_agent", "hidden": 0}
    times = {"created_at": TIME, "updated_at": TIME}
    return {
        **fields,
        **times,
        "state": "active",
        "document": _document(document),
        "creation": None,
        "corrections": None,
    }


def _conversation() -> dict[str, Any]:
    fields = {"id": "conv-1", "organization_id": "org-1", "agent_id": "agent-1", "is_default": 1, "archived": 0}
    lease = {"epoch": 0, "next_queue_number": 4}
    return {**fields, **lease, "document": _document({"model": OLD}), "created_at": TIME, "updated_at": TIME}


def _run(run_id: str, status: str, document: Any, number: int) -> dict[str, Any]:
    fields = {"id": run_id, "organization_id": "org-1", "subject_id": "", "agent_id": "agent-1", "background": 0}
    place = {"conversation_id": "conv-1", "status": status, "queue_number": number}
    return {**fields, **place, "document": _document(document), "created_at": TIME, "updated_at": TIME}


def _approval(approval_id: str, state: str, document: Any) -> dict[str, Any]:
    fields = {"id": approval_id, "organization_id": "org-1", "agent_id": "agent-1", "conversation_id": "conv-1"}
    request = {"run_id": "run-1", "state": state, "call_ids": "call-1", "document": _document(document)}
    return {**fields, **request, "created_at": TIME}
