"""Conversions between rows and domain values."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.secret_variables import SecretVariable

from mnemesh_tools.model.tools import Requirement, SourceType, Tool, ToolSecret, ToolSpec, ToolType

_LISTS: Final = ("pip_requirements", "npm_requirements", "network_hosts", "secrets")
# The fields of ToolSpec that have a column of the same name and type.
_PLAIN: Final = tuple(
    item.name for item in fields(ToolSpec) if item.name not in {"type", "source_type", "tags", "metadata", *_LISTS}
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
        "network_hosts": list(spec.network_hosts),
        "secrets": [secret_to_json(secret) for secret in spec.secrets],
        "package_lock": tool.package_lock,
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
        network_hosts=tuple(row.network_hosts),
        secrets=tuple(secret_from_json(*values) for values in row.secrets),
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
        package_lock=row.package_lock,
    )


def secret_to_json(secret: ToolSecret) -> list[str]:
    """Returns the JSON value of an environment variable, which is encrypted."""
    variable = secret.stored
    if variable is None or variable.sealed is None:
        raise ValueError(f"The value of {secret.name} is not encrypted.")
    return [secret.name, base64.b64encode(variable.sealed).decode(), variable.updated_at.isoformat()]


def secret_from_json(name: str, sealed: str, updated_at: str) -> ToolSecret:
    """Returns the environment variable of a JSON value."""
    return ToolSecret(name, stored=SecretVariable(name, base64.b64decode(sealed), datetime.fromisoformat(updated_at)))


def _search_text(spec: ToolSpec) -> str:
    described = spec.description or json.loads(spec.json_schema).get("description", "")
    return f"{spec.name}\n{described}".casefold()
