"""Conversion of the SDK's tools and results."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from math import isfinite
from typing import Any, Final

import mcp_types as types
from mnemesh_kit.unicode import well_formed, well_formed_value

from mnemesh_tools.mcp_clients.contracts import RemoteResult
from mnemesh_tools.model.mcp_tools import (
    MAX_PROGRESS_CHARS,
    MAX_REMOTE_NAME_CHARS,
    McpImage,
    McpProgress,
    RemoteTool,
)

_SHOWN_CHARS: Final = 1_000
"""The part of a message of progress that is read."""


def listing_tools(tools: Iterable[types.Tool]) -> list[RemoteTool]:
    """Returns the tools of a page, without those whose name cannot be stored."""
    return [
        RemoteTool(
            name=tool.name,
            description=tool.description,
            input_schema=_json(tool.input_schema),
            output_schema=None if tool.output_schema is None else _json(tool.output_schema),
            annotations=None
            if tool.annotations is None
            else _json(tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)),
        )
        for tool in tools
        if 0 < len(tool.name) <= MAX_REMOTE_NAME_CHARS and tool.name.isprintable()
    ]


def progress_from_sdk(progress: float, total: float | None, message: str | None) -> McpProgress | None:
    """Returns the progress of a call; None if it is no finite number."""
    if not isfinite(progress):
        return None
    line = "".join(character if character.isprintable() else " " for character in (message or "")[:_SHOWN_CHARS])
    text = " ".join(line.split())[:MAX_PROGRESS_CHARS]
    return McpProgress(progress, total if total is not None and isfinite(total) else None, text or None)


def result_from_sdk(result: types.CallToolResult) -> RemoteResult:
    """Returns the result of a call."""
    structured = result.structured_content
    return RemoteResult(
        ok=not result.is_error,
        content=tuple(_part(block) for block in result.content),
        structured=well_formed_value(structured) if isinstance(structured, dict) else None,
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
