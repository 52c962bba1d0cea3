"""Tools of MCP servers: what a server reports, its suitability for models, and the tool that agents attach."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.unicode import well_formed
from mnemesh_types import tools
from mnemesh_types.tools import SchemaHealth, SchemaStatus, ToolType

from mnemesh_tools.model.definitions import parse_object, require_json_schema
from mnemesh_tools.model.tools import DEFAULT_RETURN_CHARS, MAX_SCHEMA_CHARS, MAX_TEXT_CHARS, ToolSpec
from mnemesh_tools.schema import MAX_NAME_CHARS, is_name

MAX_TOOLS: Final = 1_000
MAX_LISTING_CHARS: Final = 4_000_000
"""Of the schemas of one server that are stored."""
MCP_TIMEOUT_SECONDS: Final = 60
MAX_REASONS: Final = 20
MAX_PROGRESS_CHARS: Final = 200
MAX_REMOTE_NAME_CHARS: Final = 200
_LEAST_PREFIX: Final = 12
"""The characters that are left of a server's name before the name of a tool, however long that is."""
_VALUES: Final = ("const", "default", "enum", "examples")
"""The keywords whose values are no schemas."""
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# Keywords that providers do not enforce.
_UNENFORCED: Final = ("allOf", "not", "if", "then", "else", "patternProperties", "oneOf", "dependentRequired")


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool as its server reports it. The JSON values are texts."""

    name: str
    description: str | None
    input_schema: str
    output_schema: str | None = None
    annotations: str | None = None


@dataclass(frozen=True, slots=True)
class McpTool:
    """A stored tool of a server."""

    tool_id: str
    server_id: str
    remote: RemoteTool
    json_schema: str | None
    """{"name", "description", "parameters"} as text; None if the schema is invalid."""
    status: SchemaStatus
    reasons: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    owner_settings: ToolSpec | None = None
    """The definition that agents attached, while the schema is invalid: a valid one gets its approval and limits."""


@dataclass(frozen=True, slots=True)
class McpToolKey:
    """The key of a tool of a server: its id, or its name on the server."""

    tool_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class McpImage:
    """An image in a result."""

    media_type: str
    data: bytes


class McpProgress(tools.McpProgress):
    """The progress of a run, as the server reports it: its own numbers and text."""

    __slots__ = ()

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total:g}"
        return f"{self.progress:g}{of}" + (f", {self.message}" if self.message else "")


OnProgress = Callable[[McpProgress], None]


def no_progress(progress: McpProgress) -> None:
    """Ignores the progress of a call."""


@dataclass(frozen=True, slots=True)
class McpRunResult:
    ok: bool
    content: tuple[str | McpImage, ...]
    structured: str | None
    """A JSON value as text."""
    seconds: float


@dataclass(frozen=True, slots=True)
class McpRun:
    """A run with a request id that has begun before."""

    result: bytes | None
    """Its encoded result; None if it has not ended, or its result was lost."""


class McpToolOrder(Enum):
    """The keys that lists of a server's tools can be sorted by."""

    NAME = "name"
    CREATE_TIME = "created_at"


def bounded_tool(tool: RemoteTool) -> RemoteTool:
    """Returns the tool as it is stored: a schema that is too long is left out; `schema_health` says so."""
    output = tool.output_schema
    return RemoteTool(
        name=tool.name,
        description=None if tool.description is None else well_formed(tool.description)[:MAX_TEXT_CHARS],
        input_schema=tool.input_schema if len(tool.input_schema) <= MAX_SCHEMA_CHARS else "",
        output_schema=output if output is not None and len(output) <= MAX_SCHEMA_CHARS else None,
        annotations=tool.annotations if tool.annotations is not None and len(tool.annotations) <= 10_000 else None,
    )


def schema_health(tool: RemoteTool) -> SchemaHealth:
    """Returns whether models can call the tool, and whether providers can enforce its schema."""
    if len(tool.input_schema) > MAX_SCHEMA_CHARS or not tool.input_schema:
        return SchemaHealth(SchemaStatus.INVALID, (f"The schema has more than {MAX_SCHEMA_CHARS:,} characters.",))
    try:
        schema = object_schema(tool)
        require_json_schema(schema, "input_schema")
    except InvalidArgument as error:
        return SchemaHealth(SchemaStatus.INVALID, (error.message,))
    external = next((ref for ref in _references(schema) if not ref.startswith("#")), None)
    if external is not None:
        return SchemaHealth(SchemaStatus.INVALID, (f"The schema refers to another document: {external[:200]}.",))
    reasons = tuple(dict.fromkeys(_departures(schema, "input_schema")))
    status = SchemaStatus.NON_STRICT if reasons else SchemaStatus.STRICT
    more = len(reasons) - MAX_REASONS
    return SchemaHealth(status, (*reasons[:MAX_REASONS], f"{more} more.") if more > 0 else reasons)


def object_schema(tool: RemoteTool) -> dict[str, Any]:
    """Returns the schema of a tool's arguments, which is that of an object. No schema, or `true`, allows any arguments.

    Keywords with the value null, which some libraries write, are left out.

    Raises:
        InvalidArgument: It is the schema of something else, or none.
    """
    text = tool.input_schema.strip()
    schema = {} if text in ("null", "true") else _without_nulls(parse_object(text, "input_schema"))
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidArgument("input_schema must have the type object.", field="input_schema")
    return {**schema, "type": "object"}


def _without_nulls(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_nulls(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for keyword, value in schema.items():
        if keyword in _VALUES:
            if value is not None or keyword not in ("enum", "examples"):
                found[keyword] = value
        elif keyword in _BY_NAME and isinstance(value, dict):
            found[keyword] = {name: {} if part is None else _without_nulls(part) for name, part in value.items()}
        elif value is not None:
            found[keyword] = _without_nulls(value)
    return found


def tool_name(remote: str, server: str, is_free: Callable[[str], bool]) -> str:
    """Returns the name that agents call a tool by: that of the server if it is an identifier and free.

    Otherwise the name of the server comes before it, and then a number after it.
    """
    own = _identifier(remote)
    # The name of the tool says more than that of its server, so the latter is shortened.
    room = max(_LEAST_PREFIX, MAX_NAME_CHARS - len(own) - 1)
    candidates = [own, _identifier(f"{_identifier(server)[:room].rstrip('_')}_{own}")]
    candidates += [_identifier(own[: MAX_NAME_CHARS - 4] + f"_{number}") for number in range(2, 100)]
    for candidate in candidates:
        if is_free(candidate):
            return candidate
    return _identifier(own[:30] + "_" + hashlib.sha256(f"{server}\0{remote}".encode()).hexdigest()[:16])


def model_schema(name: str, tool: RemoteTool) -> str:
    """Returns the function schema of a tool whose input schema is usable."""
    parameters = object_schema(tool)
    parameters.setdefault("properties", {})
    parameters.setdefault("required", [])
    described = tool.description or f"The tool {tool.name} of an MCP server."
    return json.dumps({"name": name, "description": described, "parameters": parameters}, ensure_ascii=False)


def new_spec(server_id: str, name: str, tool: RemoteTool) -> ToolSpec:
    """Returns the definition that agents attach."""
    return ToolSpec(
        name=name,
        type=ToolType.MCP,
        json_schema=model_schema(name, tool),
        return_char_limit=DEFAULT_RETURN_CHARS,
        timeout_seconds=MCP_TIMEOUT_SECONDS,
        mcp_server_id=server_id,
        mcp_tool_name=tool.name,
    )


def _identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:MAX_NAME_CHARS]
    name = name if name and not name[0].isdigit() else f"tool_{name}"[:MAX_NAME_CHARS]
    return name if is_name(name) else f"{name[: MAX_NAME_CHARS - 1]}_"


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


def _departures(schema: Any, path: str) -> Iterator[str]:
    """Yields why providers cannot enforce a schema: every object must be closed, with all properties required."""
    if not isinstance(schema, dict):
        return
    for keyword in _UNENFORCED:
        if keyword in schema:
            yield f"{path} uses {keyword}."
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or "properties" in schema:
        unknown = [name for name in schema.get("required", []) if name not in properties]
        if unknown:
            yield f"{path} requires {json.dumps(unknown[0])[:200]}, which is not a property."
        if schema.get("additionalProperties") is not False:
            yield f"{path} does not set additionalProperties to false."
        optional = [name for name in properties if name not in schema.get("required", [])]
        if optional:
            yield f"{path} has optional properties: {', '.join(optional)[:200]}."
    for name, part in properties.items():
        yield from _departures(part, f"{path}.{name}"[:300])
    yield from _departures(schema.get("items"), f"{path}[]")
    for name, part in {**schema.get("$defs", {}), **schema.get("definitions", {})}.items():
        yield from _departures(part, f"{path}.$defs.{name}"[:300])
    for part in schema.get("anyOf", []):
        yield from _departures(part, path)


MAX_IMAGE_BYTES: Final = 1_500_000
MAX_IMAGES_BYTES: Final = 2_000_000


def bounded_content(
    content: Sequence[str | McpImage], structured: Any, limit: int
) -> tuple[tuple[str | McpImage, ...], str | None]:
    """Returns a result within the tool's limit of characters, and images within the size of an answer.

    Args:
        content: The parts of the result.
        structured: The structured content, or None.
        limit: The largest number of characters of all texts together. A longer result is cut, with a note.
    """
    kept: list[str | McpImage] = []
    total, left, image_bytes = sum(len(part) for part in content if isinstance(part, str)), limit, MAX_IMAGES_BYTES
    for part in content:
        if isinstance(part, str):
            if left > 0 or not part:
                kept.append(part[:left])
            left -= min(left, len(part))
        elif len(part.data) <= min(MAX_IMAGE_BYTES, image_bytes):
            kept.append(part)
            image_bytes -= len(part.data)
        else:
            kept.append(f"[An image of {len(part.data):,} bytes was left out.]")
    if total > limit:
        kept.append(f"[The function output was truncated from {total} to {limit} characters.]")
    text = None if structured is None else json.dumps(structured, ensure_ascii=False)
    if text is not None and len(text) > limit:
        kept.append(f"[The structured result was left out: it has {len(text)} characters, and the limit is {limit}.]")
        text = None
    return tuple(kept), text
