"""Conversion of the SDK's tools and results."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final

import mcp_types as types
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp.shared.message import SessionMessage
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from mnemesh_kit.unicode import well_formed, well_formed_value
from pydantic import ValidationError

from mnemesh_tools.mcp_clients.contracts import McpTarget, RemoteResult
from mnemesh_tools.model.mcp_tools import MAX_PROGRESS_CHARS, MAX_REMOTE_NAME_CHARS, McpImage, McpProgress, RemoteTool
from mnemesh_tools.model.tools import MAX_SCHEMA_CHARS

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


_SHOWN_CHARS: Final = 1_000
"""The part of a message of progress that is read."""


class ListedTools:
    """The tools of a list that is read page by page. Those without a usable name are problems of the server."""

    def __init__(self, target: McpTarget, *, maps_headers: bool) -> None:
        """Creates an empty list. With `maps_headers`, the protocol lets schemas turn arguments into headers."""
        self._target = target
        self._maps_headers = maps_headers
        self._tools: dict[str, RemoteTool] = {}
        self.problems: list[str] = []
        self.count = 0
        self.schema_chars = 0

    @property
    def tools(self) -> tuple[RemoteTool, ...]:
        """The tools, each name once."""
        return tuple(self._tools.values())

    def add(self, page: Iterable[types.Tool]) -> None:
        """Adds a page. Its tools are in the form of `received.acceptable`."""
        for listed in page:
            self.count += 1
            raw = (listed.meta or {}).get(LISTED)
            tool = raw if isinstance(raw, dict) else {}
            name: Any = tool.get("name")
            problem = self._problem(name, tool)
            if problem is None:
                try:
                    self._tools[name] = found = _remote_tool(name, tool, self._target)
                except (ValueError, RecursionError):  # such as numbers of 10,000 digits
                    problem = "has a definition that cannot be read"
                else:
                    self.schema_chars += min(len(found.input_schema), MAX_SCHEMA_CHARS)
            if problem is not None:
                shown = repr(name[:50]) if isinstance(name, str) and name else f"number {self.count}"
                self.problems.append(self._target.masked(f"the tool {shown} {problem}")[:300])

    def _problem(self, name: Any, tool: dict[str, Any]) -> str | None:
        problem = _name_problem(name)
        if problem is None and name in self._tools:
            return "is listed twice"
        if problem is None and self._maps_headers:
            reason = find_invalid_x_mcp_header(tool.get("inputSchema"))
            return None if reason is None else f"maps arguments to headers in a way that is not valid: {reason}"
        return problem


def _name_problem(name: Any) -> str | None:
    if not isinstance(name, str) or not name:
        return "has no name"
    if len(name) > MAX_REMOTE_NAME_CHARS:
        return f"has a name of more than {MAX_REMOTE_NAME_CHARS} characters"
    return None if name.isprintable() else "has a name with control characters"


def _remote_tool(name: str, tool: dict[str, Any], target: McpTarget) -> RemoteTool:
    tool = target.redactor.redacted_value(tool)
    description, output, annotations = (tool.get(key) for key in ("description", "outputSchema", "annotations"))
    return RemoteTool(
        name=name,
        description=description if isinstance(description, str) else None,
        input_schema=_json(tool.get("inputSchema")),
        output_schema=_json(output) if isinstance(output, dict) else None,
        annotations=_json(annotations) if isinstance(annotations, dict) else None,
    )


def progress_from_sdk(progress: float, total: float | None, message: str | None) -> McpProgress | None:
    """Returns the progress of a call; None if it is not a finite number."""
    if not isfinite(progress):
        return None
    line = "".join(character if character.isprintable() else " " for character in (message or "")[:_SHOWN_CHARS])
    text = " ".join(line.split())[:MAX_PROGRESS_CHARS]
    return McpProgress(progress, total if total is not None and isfinite(total) else None, text or None)


def result_from_sdk(result: types.CallToolResult, target: McpTarget) -> RemoteResult:
    """Returns the result of a call: well-formed, and without the secrets of the target."""
    structured = result.structured_content
    parts = (_part(block) for block in result.content)
    return RemoteResult(
        ok=not result.is_error,
        content=tuple(target.masked(part) if isinstance(part, str) else part for part in parts),
        structured=well_formed_value(target.redactor.redacted_value(structured))
        if isinstance(structured, dict)
        else None,
    )


def _part(block: Any) -> str | McpImage:
    match block:
        case types.TextContent():
            return well_formed(block.text)
        case types.ImageContent():
            return _binary("image", block.mime_type, block.data)
        case types.AudioContent():
            return _binary("sound", block.mime_type, block.data)
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return well_formed(resource.text)
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            return _binary(f"resource {resource.uri}", resource.mime_type or "application/octet-stream", resource.blob)
        case types.ResourceLink():
            return well_formed(f"[Resource {block.name}: {block.uri}]")
        case _:
            return f"[Content of type {getattr(block, 'type', 'unknown')} was left out.]"


def _binary(kind: str, media_type: str, data: str) -> str | McpImage:
    """Returns an image, or a note about other binary content."""
    media_type, kind = well_formed(media_type)[:100], well_formed(kind)[:500]
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[Content that is not valid was left out: {kind}.]"
    if media_type.startswith("image/"):
        return McpImage(media_type, content)
    return f"[Content was left out: {kind} of type {media_type}, {len(content):,} bytes.]"


def _json(value: Any) -> str:
    return json.dumps(well_formed_value(value), ensure_ascii=False)
