"""The shapes in which agent files occur, as the one that `reading` understands.

A file may be JSON within a JSON string, and may have the legacy form: one agent with its blocks and tools in it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.json_bounds import require_bounded_json
from mnemesh_kit.unicode import well_formed_value

MAX_VALUES: Final = 500_000
"""How many values an agent file may have: about 15,000 messages."""
_ENCODINGS: Final = 4
"""How often a file may be encoded as JSON."""
LISTS: Final = ("agents", "groups", "blocks", "files", "sources", "tools", "mcp_servers", "skills")


def decoded(data: object) -> dict[str, Any]:
    """Returns the JSON object of an agent file, whose strings are well-formed.

    Args:
        data: the bytes or the text of the file, or its JSON.

    Raises:
        InvalidArgument: it is no JSON object of an agent file. The field is "agents" or "file".
        TooManyValues: it has more than `MAX_VALUES` values.
    """
    for _ in range(_ENCODINGS):
        if not isinstance(data, str | bytes):
            break
        data = _parsed(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    if isinstance(data, dict) and "agents" not in data and isinstance(data.get("agent_file"), str | dict):
        return decoded(data["agent_file"])
    if isinstance(data, dict) and "core_memory" in data and "agents" not in data:
        data = _from_legacy(data)
    if not isinstance(data, dict) or not isinstance(data.get("agents"), list) or not data["agents"]:
        raise InvalidArgument("This is no agent file of Letta: it has no agents.", field="agents")
    try:
        readable: dict[str, Any] = well_formed_value(data)
    except RecursionError as error:
        raise InvalidArgument("This agent file is nested too deeply.", field="agents") from error
    return readable


def _parsed(text: bytes) -> object:
    text = text.removeprefix(b"\xef\xbb\xbf")
    require_bounded_json(text, MAX_VALUES)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"The file is no JSON: {error}", field="file") from error


def _from_legacy(agent: dict[str, Any]) -> dict[str, Any]:
    """Returns the present form of a file with one agent. Its messages, blocks and tools get ids; they have none."""
    messages = [{"id": f"message-{n}", **row} for n, row in enumerate(_rows(agent, "messages"))]
    window = agent.get("in_context_message_indices")
    places = window if isinstance(window, list) else range(len(messages))
    blocks = [{"id": f"block-{n}", **row} for n, row in enumerate(_rows(agent, "core_memory"))]
    tools = [{"id": f"tool-{n}", **row} for n, row in enumerate(_rows(agent, "tools"))]
    secrets = agent.get("tool_exec_environment_variables")
    present = {
        **{key: value for key, value in agent.items() if key not in _LEGACY_ONLY},
        "id": "agent-0",
        "messages": messages,
        "in_context_message_ids": [
            messages[place]["id"] for place in places if isinstance(place, int) and 0 <= place < len(messages)
        ],
        "block_ids": [row["id"] for row in blocks],
        "tool_ids": [row["id"] for row in tools],
        "tags": [tag.get("tag") if isinstance(tag, dict) else tag for tag in agent.get("tags") or ()],
        "tool_exec_environment_variables": {row.get("key", ""): "" for row in secrets if isinstance(row, dict)}
        if isinstance(secrets, list)
        else secrets,
    }
    return {"agents": [present], "blocks": blocks, "tools": tools, "created_at": agent.get("created_at")}


_LEGACY_ONLY: Final = frozenset(
    {"core_memory", "tools", "in_context_message_indices", "multi_agent_group", "version", "messages"}
)


def _rows(agent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = agent.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
