"""Revision 0012: stored messages, tool returns and decisions of the earlier form are read as shared messages."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_orchestrator.model.events import DurableBody, MessageEvent
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.databases.revisions import at_revision
from mnemesh_types.messages import (
    ApprovalDecision,
    Approve,
    ClientReturn,
    Deny,
    OmittedReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
    ToolReturn,
    ToolStatus,
)

TIME: Final = "2026-01-02T03:04:05Z"
SQL_TIME: Final = "2026-01-02 03:04:05.000000"
RETURN: Final = {
    "tool_call_id": "call-1",
    "name": "look",
    "status": "error",
    "text": "gone",
    "stdout": [],
    "stderr": [],
}
DECISIONS: Final = [
    {"tool_call_id": "call-1", "decision": {"type": "approve"}},
    {"tool_call_id": "call-2", "decision": {"type": "deny", "reason": "no"}},
    {
        "tool_call_id": "call-3",
        "decision": {"type": "client_return", "status": "success", "text": "done", "stdout": ["o"]},
    },
]
SHARED: Final[tuple[ApprovalDecision, ...]] = (
    Approve("call-1"),
    Deny("call-2", "no"),
    ClientReturn("call-3", ToolReturn.from_text("call-3", "", ToolStatus.SUCCESS, "done", ("o",))),
)
HIDDEN: Final = [
    {"type": "redacted_reasoning", "data": "d"},
    {"type": "omitted_reasoning"},
    {"type": "summarized_reasoning", "id": "r", "summaries": ["s"]},
]
FOREIGN: Final = {"x": {"tool_call_id": "c", "decision": {"type": "approve"}}, "y": {"type": "redacted_reasoning"}}


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def rows(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, list[bytes]]]:
    """The documents after the upgrade, by table and column."""
    if request.param == "sqlite":
        yield await _upgraded(f"sqlite:///{tmp_path / 'orchestrator.db'}")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = await server.create_database()
    yield await _upgraded(server.url(name))
    await server.drop_database(name)


def test_journalled_answer_keeps_its_reasoning(rows: dict[str, list[bytes]]) -> None:
    entry = msgspec.json.decode(rows["journal.entry"][0], type=JournalEntry)
    assert entry.answer is not None
    assert entry.answer.message.content == (
        TextPart("hi"),
        RedactedReasoningPart("d"),
        OmittedReasoningPart(),
        SummarizedReasoningPart("r", ("s",)),
    )


def test_journalled_tool_return_keeps_its_text(rows: dict[str, list[bytes]]) -> None:
    entry = msgspec.json.decode(rows["journal.entry"][1], type=JournalEntry)
    assert entry.result == ToolReturn.from_text("call-1", "look", ToolStatus.ERROR, "gone")


def test_events_are_replayed_with_their_returns_and_decisions(rows: dict[str, list[bytes]]) -> None:
    returned, answered = (msgspec.json.decode(body, type=DurableBody) for body in rows["events.body"])
    assert isinstance(returned, MessageEvent)
    assert returned.tool_returns[0].text == "gone"
    assert isinstance(answered, MessageEvent)
    assert answered.decisions == SHARED


def test_repeated_answer_to_an_approval_is_recognised(rows: dict[str, list[bytes]]) -> None:
    """Answers are compared by their bytes."""
    assert rows["approvals.decisions"] == [msgspec.json.encode(SHARED)]


def test_values_written_by_users_stay_unchanged(rows: dict[str, list[bytes]]) -> None:
    (document,) = rows["approvals.document"]
    assert json.loads(document)["asked"]["calls"][0]["arguments"] == FOREIGN


async def _upgraded(url: str) -> dict[str, list[bytes]]:
    await at_revision(url, "mnemesh_orchestrator", "0011", _rows())
    database = Database.open(url)
    await database.migrate("mnemesh_orchestrator")
    found = await database.read(_documents)
    await database.close()
    return found


def _documents(conn: sa.Connection) -> dict[str, list[bytes]]:
    columns = {"journal": ("entry", "ordinal"), "events": ("body", "sequence"), "approvals": ("decisions", "id")}
    found = {}
    for table, (column, order) in [*columns.items(), ("approvals", ("document", "id"))]:
        names = sa.table(table, sa.column(column), sa.column(order))
        rows = conn.execute(sa.select(names.c[column]).order_by(names.c[order]))
        found[f"{table}.{column}"] = [bytes(row[0]) for row in rows]
    return found


def _rows() -> dict[str, list[dict[str, Any]]]:
    message = {
        "id": "message-1",
        "role": "assistant",
        "created_at": TIME,
        "content": [{"type": "text", "text": "hi"}, *HIDDEN],
        "tool_calls": [{"id": "call-1", "name": "look", "arguments": "{}", "provider_id": None}],
        "is_err": False,
    }
    answer = {"message": message, "leading": [], "usage": {}, "base_version": 1, "system_text": None}
    event = {"type": "message", "message_id": "message-1", "otid": "o", "message_time": TIME}
    request = {"step_id": "step-1", "message": message, "calls": [{"ordinal": 0, "arguments": FOREIGN}]}
    entry = {"run_id": "run-1", "step_id": "step-1", "epoch": 1}
    approval = {"id": "message-2", "organization_id": "org-1", "agent_id": "agent-1", "conversation_id": "conv-1"}
    times = {"created_at": SQL_TIME}
    agent = {"id": "agent-1", "organization_id": "org-1", "name": "ada", "type": "letta_v1_agent", "hidden": 0}
    conversation = {"id": "conv-1", "organization_id": "org-1", "agent_id": "agent-1", "is_default": 1, "archived": 0}
    run = {"id": "run-1", "organization_id": "org-1", "subject_id": "", "agent_id": "agent-1", "background": 0}
    position = {"conversation_id": "conv-1", "status": "running", "queue_number": 1}
    both = {**times, "updated_at": SQL_TIME, "document": _document({})}
    return {
        "agents": [{**agent, "state": "active", **both}],
        "conversations": [{**conversation, "epoch": 0, "next_queue_number": 2, **both}],
        "runs": [{**run, **position, **both}],
        "journal": [
            {**entry, "kind": "answer", "ordinal": 0, "entry": _document({**_entry("answer"), "answer": answer})},
            {**entry, "kind": "result", "ordinal": 1, "entry": _document({**_entry("result"), "result": RETURN})},
        ],
        "events": [
            _event(1, {**event, "kind": "tool_return", "tool_returns": [RETURN]}),
            _event(2, {**event, "kind": "approval_response", "decisions": DECISIONS}),
        ],
        "approvals": [
            {
                **approval,
                "run_id": "run-1",
                "state": "decided",
                "call_ids": "call-1",
                "document": _document({"asked": request}),
                "decisions": _document(DECISIONS),
                **times,
            }
        ],
    }


def _entry(kind: str) -> dict[str, Any]:
    return {"step_id": "step-1", "kind": kind, "at": TIME}


def _event(sequence: int, body: dict[str, Any]) -> dict[str, Any]:
    fields = {"run_id": "run-1", "sequence": sequence, "step_id": "step-1"}
    return {**fields, "body": _document(body), "created_at": SQL_TIME}


def _document(content: Any) -> dict[str, str]:
    return {"bytes": json.dumps(content, separators=(",", ":"))}
