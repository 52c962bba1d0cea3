"""Stores content parts, tool returns and approval decisions in the form of the mesh's one message type.

Parts of hidden reasoning have shorter tags, a tool return has content parts instead of one text, and a decision carries
the id of its call itself. Downgrading drops the images of tool returns, which the earlier form cannot hold.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

PAGE = 500
# Table, primary key, and the column of JSON that holds messages or parts of them.
DOCUMENTS = (
    ("runs", ("id",), "document"),
    ("approvals", ("id",), "document"),
    ("approvals", ("id",), "decisions"),
    ("journal", ("run_id", "step_id", "kind", "ordinal"), "entry"),
    ("events", ("run_id", "sequence"), "body"),
)
KEY_TYPES = {"ordinal": sa.Integer, "sequence": sa.Integer}
# A document without any of these holds nothing that changes. Bare quotes never occur inside a JSON string.
MARKS = (b'"tool_call_id"', b'_reasoning"', b'"redacted"', b'"omitted"', b'"summarized"')
SHORT_TAGS = {
    "redacted_reasoning": "redacted",
    "omitted_reasoning": "omitted",
    "summarized_reasoning": "summarized",
}
LONG_TAGS = {short: long for long, short in SHORT_TAGS.items()}
# Values that users and models wrote. They may look like ours, and are not.
FOREIGN = frozenset({"arguments", "response_format"})

Change = Callable[[dict[str, Any]], dict[str, Any]]


def upgrade() -> None:
    _rewrite(_shared)


def downgrade() -> None:
    _rewrite(_separate)


def _rewrite(change: Change) -> None:
    conn = op.get_bind()
    for name, keys, column in DOCUMENTS:
        columns = [sa.column(key, KEY_TYPES.get(key, sa.Text)) for key in keys]
        table = sa.table(name, *columns, sa.column(column, sa.LargeBinary))
        position = sa.tuple_(*columns)
        page = sa.select(*columns, table.c[column]).where(table.c[column].is_not(None)).order_by(*columns).limit(PAGE)
        rows = conn.execute(page).all()
        while rows:
            for *key, document in rows:
                before = bytes(document)
                if any(mark in before for mark in MARKS):
                    after = msgspec.json.encode(_changed(msgspec.json.decode(before), change))
                    found = [one == value for one, value in zip(columns, key, strict=True)]
                    conn.execute(table.update().where(*found).values({column: after}))
            last = sa.tuple_(*(sa.literal(value) for value in rows[-1][:-1]))
            rows = conn.execute(page.where(position > last)).all()


def _changed(value: Any, change: Change) -> Any:
    if isinstance(value, list):
        return [_changed(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    return change({key: item if key in FOREIGN else _changed(item, change) for key, item in value.items()})


def _shared(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("type") in SHORT_TAGS:
        return {**value, "type": SHORT_TAGS[value["type"]]}
    if {"tool_call_id", "name", "status", "text"} <= value.keys():
        text = value.pop("text")
        return {**value, "content": [{"type": "text", "text": text}]}
    if {"tool_call_id", "decision"} == value.keys():
        call_id, decision = value["tool_call_id"], value["decision"]
        if decision["type"] != "client_return":
            # Answers are compared by their bytes, so the keys have the order of the type.
            return {"type": decision.pop("type"), "tool_call_id": call_id, **decision}
        returned = {
            "tool_call_id": call_id,
            "name": "",
            "status": decision["status"],
            "content": [{"type": "text", "text": decision["text"]}],
            "stdout": decision.get("stdout", []),
            "stderr": decision.get("stderr", []),
        }
        return {"type": "return", "tool_call_id": call_id, "return": returned}
    return value


def _separate(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("type")
    if kind in LONG_TAGS:
        return {**value, "type": LONG_TAGS[kind]}
    if {"tool_call_id", "name", "status", "content"} <= value.keys():
        texts = [part["text"] for part in value.pop("content") if part["type"] == "text"]
        return {**value, "text": "\n".join(texts)}
    if kind in ("approve", "deny") and "tool_call_id" in value:
        return {"tool_call_id": value.pop("tool_call_id"), "decision": value}
    if kind == "return" and "return" in value:
        returned = value["return"]
        decision = {name: returned[name] for name in ("status", "text", "stdout", "stderr")}
        return {"tool_call_id": value["tool_call_id"], "decision": {"type": "client_return", **decision}}
    return value
