"""Conversions between rows and domain values."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_tools.model.tools import Requirement, SourceType, Tool, ToolSpec, ToolType

# The fields of ToolSpec that have a column of the same name and type.
_PLAIN: Final = tuple(
    item.name
    for item in fields(ToolSpec)
    if item.name not in ("type", "source_type", "pip_requirements", "npm_requirements", "tags", "metadata")
)


def tool_to_row(tool: Tool) -> dict[str, Any]:
    """Returns the column values of a tool. Its tags are rows of `tool_tags`."""
    spec = tool.spec
    return {
        **{name: getattr(spec, name) for name in _PLAIN},
        "id": tool.id,
        "organization_id": tool.organization_id,
        "type": spec.type.value,
        "source_type": spec.source_type.value,
        "pip_requirements": [[item.name, item.version] for item in spec.pip_requirements],
        "npm_requirements": [[item.name, item.version] for item in spec.npm_requirements],
        "metadata_json": spec.metadata,
        "search_text": _search_text(spec),
        "revision": tool.revision,
        "created_at": tool.created_at,
        "updated_at": tool.updated_at,
        "created_by_id": tool.created_by_id,
        "last_updated_by_id": tool.last_updated_by_id,
    }


def tool_from_row(row: sa.Row[Any], tags: tuple[str, ...]) -> Tool:
    """Returns the tool of a row of `tools`, with these tags."""
    columns = row._mapping
    spec = ToolSpec(
        **{name: columns[name] for name in _PLAIN},
        type=ToolType(row.type),
        source_type=SourceType(row.source_type),
        pip_requirements=tuple(Requirement(name, version) for name, version in row.pip_requirements),
        npm_requirements=tuple(Requirement(name, version) for name, version in row.npm_requirements),
        tags=tags,
        metadata=columns["metadata_json"],
    )
    return Tool(
        id=row.id,
        organization_id=row.organization_id,
        spec=spec,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
        created_by_id=row.created_by_id,
        last_updated_by_id=row.last_updated_by_id,
    )


def _search_text(spec: ToolSpec) -> str:
    described = spec.description or json.loads(spec.json_schema).get("description", "")
    return f"{spec.name}\n{described}".casefold()
