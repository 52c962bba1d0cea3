"""What servers send, in the form that the SDK accepts: one bad tool, or one bad part of a result, costs only itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp.shared.message import SessionMessage
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

LISTED: Final = "mnemesh.listed"
"""The key of `_meta` under which a listed tool has its own definition, as its server sent it."""
_VERSIONS: Final = (max(HANDSHAKE_PROTOCOL_VERSIONS), max(MODERN_PROTOCOL_VERSIONS))
_ANY_OBJECT: Final = {"type": "object"}
_PARTS: Final = ("type", "text", "data", "mimeType", "resource", "name", "uri")


def acceptable(received: Any) -> Any:
    """Returns a message whose list of tools, or whose result of a call, the SDK does not refuse as a whole."""
    if not isinstance(received, SessionMessage) or not isinstance(received.message, types.JSONRPCResponse):
        return received
    result = received.message.result
    if isinstance(result.get("tools"), list) and "content" not in result:
        result["tools"] = [_listed(tool) for tool in result["tools"]]
    elif "content" in result or "structuredContent" in result:
        _repair_result(result)
    return received


def _listed(tool: Any) -> dict[str, Any]:
    """Returns a tool of a list. The SDK gets what it needs for calls: the name, and which arguments become headers."""
    name, schema = (tool.get("name"), tool.get("inputSchema")) if isinstance(tool, dict) else (None, None)
    own = {"name": name if isinstance(name, str) else "", "_meta": {LISTED: tool}}
    kept = {**own, "inputSchema": schema}
    is_usable = find_invalid_x_mcp_header(schema) is None and _is_valid("tools/list", {"tools": [kept]})
    return kept if is_usable else {**own, "inputSchema": _ANY_OBJECT}


def _repair_result(result: dict[str, Any]) -> None:
    content = result.get("content")
    if not isinstance(content, list):
        content = [] if content is None else [content]
    result["content"] = [_block(block) for block in content]
    result["isError"] = bool(result.get("isError"))
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        del result["structuredContent"]
        if not content:
            result["content"] = [_text(structured)]
    for key in set(result) - {"content", "isError", "structuredContent"}:
        if not _is_valid("tools/call", {"content": [], key: result[key]}):
            del result[key]


def _block(block: Any) -> Mapping[str, Any]:
    if _is_block(block):
        return block  # type: ignore[no-any-return]
    if not isinstance(block, dict):
        return _text(block)
    bare = {key: block[key] for key in _PARTS if key in block}
    if _is_block(bare):
        return bare
    if block.get("type") == "text" and "text" in block:
        return _text(block["text"])
    return _text(f"[Content of type {str(block.get('type', 'unknown'))[:100]} was left out: it is not valid.]")


def _text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and _is_valid("tools/call", {"content": [block]})


def _is_valid(method: str, result: Mapping[str, Any]) -> bool:
    """Returns whether every form of the protocol allows a result."""
    try:
        for version in _VERSIONS:
            methods.parse_server_result(method, version, {"resultType": "complete", **_CACHE, **result})
    except (ValidationError, ValueError, TypeError, RecursionError):
        return False
    return True


_CACHE: Final = {"ttlMs": 0, "cacheScope": "private"}
"""What the newest form requires of lists."""
