"""The elements of the schemas of built-in tools."""

from collections.abc import Mapping
from typing import Any

from mnemesh_orchestrator.model.models import ToolSchema


def text(description: str) -> dict[str, Any]:
    """Returns the schema of a text."""
    return {"type": "string", "description": description}


def number(description: str, **bounds: int) -> dict[str, Any]:
    """Returns the schema of an integer within bounds."""
    return {"type": "integer", "description": description, **bounds}


def texts(description: str, among: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the schema of a list of texts, all of some values if they are given."""
    items: dict[str, Any] = {"type": "string", "enum": list(among)} if among else {"type": "string"}
    return {"type": "array", "items": items, "description": description}


def objects(description: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a list of objects with these fields, all required."""
    items = {"type": "object", "properties": dict(fields), "required": list(fields)}
    return {"type": "array", "items": items, "description": description}


def tool(
    name: str, description: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> ToolSchema:
    """Returns the schema of a tool with required and optional arguments."""
    parameters = {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}
    return ToolSchema(name, description, parameters)
