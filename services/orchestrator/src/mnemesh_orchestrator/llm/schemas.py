"""Schemas of tools and answers in the forms that providers take, and the conversion and check of what returns."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from mnemesh_orchestrator.llm.errors import ProviderOptionsInvalid
from mnemesh_orchestrator.llm.port import AnsweredCall, LlmRequest
from mnemesh_orchestrator.llm.settings import Api, Dialect, dialect_for
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema, first_line, validator

Node = dict[str, Any]
_MAX_NODES: Final = 3_000
_MAX_DEPTH: Final = 24
_MAX_REPEATS: Final = 2
"""How often a reference within its own target is written out."""
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_COMBINATORS: Final = ("anyOf", "oneOf", "allOf")
_FORMATS: Final = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_OF_OBJECTS: Final = ("properties", "additionalProperties", "patternProperties", "required", "maxProperties")
_OF_ARRAYS: Final = ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")
_OPEN_API: Final = ("title", "description", "nullable", "minimum", "maximum", "minItems", "maxItems")
_OPEN_API_FORMATS: Final = ("date-time", "int32", "int64", "float", "double")
_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NO_KEY: Final = re.compile(r"[^a-zA-Z0-9_.-]")

_UNSUPPORTED = ("oneOf", "allOf", "not", "if", "patternProperties", "dependentSchemas")


def sendable_tool(tool: ToolSchema, dialect: Dialect) -> ToolSchema:
    """Returns a tool as a vendor accepts it."""
    parameters = _Writer(tool.parameters).root()
    if dialect.openapi_schemas:
        parameters = {**_open_api(parameters), "type": "object", "properties": _open_api_properties(parameters)}
    description, longest = tool.description, dialect.tool_description_chars
    if longest is not None and len(description) > longest:
        # The description of the arguments has no limit.
        cut = description.rfind(" ", longest // 2, longest - 1)
        cut = cut if cut > 0 else longest - 1
        rest = f"…{description[cut:].strip()}"
        parameters["description"] = " ".join(filter(None, (rest, parameters.get("description"))))
        description = description[:cut].rstrip() + "…"
    return ToolSchema(tool.name, description, parameters)


def renamed_arguments(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tool's own names of arguments by those that providers get, where these differ."""
    names = _sent_names(_Writer(parameters).merged_root()["properties"])
    return {sent: own for own, sent in names.items() if sent != own}


class _Identity:
    """A tool as a key of the cache. A comparison of schemas would take as long as their conversion."""

    __slots__ = ("tool",)

    def __init__(self, tool: ToolSchema) -> None:
        self.tool = tool

    def __hash__(self) -> int:
        return id(self.tool)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.tool is self.tool


@lru_cache(maxsize=256)
def _renamed(key: _Identity) -> dict[str, str]:
    return renamed_arguments(key.tool.parameters)


class _Writer:
    """Writes one schema. References are replaced by what they refer to, within bounds."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._whole = schema
        self._left = _MAX_NODES

    def merged_root(self) -> Node:
        """Returns the schema of a tool's arguments under its own names, without combinators at its root."""
        written = _merged(self._node(self._whole, ()))
        for keyword in ("anyOf", "oneOf"):
            alternatives = written.pop(keyword, None)
            if alternatives:
                _join(written, [_merged(part) for part in alternatives])
        root = {key: value for key, value in written.items() if key in ("title", "description", *_OF_OBJECTS)}
        properties = root.setdefault("properties", {})
        required = [name for name in root.pop("required", ()) if name in properties]
        if required or "required" in self._whole:
            root["required"] = required
        return {"type": "object", **{key: _without_loose_names(value) for key, value in root.items()}}

    def root(self) -> Node:
        """Returns the schema of the arguments of a tool."""
        root = self.merged_root()
        names = _sent_names(root["properties"])
        root["properties"] = {names[name]: part for name, part in root["properties"].items()}
        if "required" in root:
            root["required"] = [names[name] for name in root["required"]]
        return root

    def _node(self, node: Any, within: tuple[str, ...]) -> Node:
        self._left -= 1
        if not isinstance(node, Mapping):
            return {}
        reference = node.get("$ref", node.get("$dynamicRef"))
        if isinstance(reference, str):
            return self._referred(node, reference, within)
        if self._left < 0 or len(within) > _MAX_DEPTH:
            return _short(node)
        written: Node = {}
        for keyword, value in node.items():
            kept = self._keyword(keyword, value, (*within, ""))
            if kept is not None:
                written[keyword] = kept
        return _completed(written)

    def _referred(self, node: Mapping[str, Any], reference: str, within: tuple[str, ...]) -> Node:
        target = _resolved(self._whole, reference)
        beside = {key: value for key, value in node.items() if key not in ("$ref", "$dynamicRef")}
        if not isinstance(target, Mapping) or target is node:
            return self._node(beside, within) if beside else {}
        if self._left < 0 or within.count(reference) >= _MAX_REPEATS or len(within) > _MAX_DEPTH:
            return _short({**target, **beside})
        return self._node({**target, **beside}, (*within, reference))

    def _keyword(self, keyword: str, value: Any, within: tuple[str, ...]) -> Any:
        """Returns the value of a keyword, or None for one that is left out."""
        if keyword == "type":
            kinds = [kind for kind in (value if isinstance(value, list) else [value]) if kind in _TYPES]
            return kinds[0] if len(kinds) == 1 else kinds or None
        if keyword in ("title", "description", "pattern", "format"):
            return value if isinstance(value, str) and (keyword != "format" or value in _FORMATS) else None
        if keyword in ("const", "default"):
            return value
        if keyword in ("uniqueItems", "nullable"):
            return value if isinstance(value, bool) else None
        if keyword in (*_COUNTS, *_NUMBERS):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return value if is_number and (value >= 0 or keyword in _NUMBERS) else None
        return self._parts(keyword, value, within)

    def _parts(self, keyword: str, value: Any, within: tuple[str, ...]) -> Any:
        """As `_keyword`, for keywords whose values are lists or schemas."""
        match keyword:
            case "enum" | "examples":
                return value if isinstance(value, list) and value else None
            case "required" if isinstance(value, list):
                return list(dict.fromkeys(name for name in value if isinstance(name, str)))
            case "properties" | "patternProperties" if isinstance(value, Mapping):
                return {str(name): self._node(part, within) for name, part in value.items() if part is not False}
            case "anyOf" | "oneOf" | "allOf" | "prefixItems" if isinstance(value, list):
                return [self._node(part, within) for part in value if part is not False] or None
            case "items" if isinstance(value, list):  # a tuple of an older draft
                return _any_of([self._node(part, within) for part in value])
            case "items" if value is not False:
                return self._node(value, within)
            case "additionalProperties":
                return value if isinstance(value, bool) else self._node(value, within)
        return None


def _completed(written: Node) -> Node:
    """Adds what a schema implies: its type, the items of an array; leaves out what has no meaning."""
    if written.pop("nullable", False):
        kinds = written.get("type")
        if kinds is not None:
            written["type"] = [*(kinds if isinstance(kinds, list) else [kinds]), "null"]
    if "type" not in written and not any(keyword in written for keyword in _COMBINATORS):
        kind = _implied_type(written)
        if kind is not None:
            written["type"] = kind
    kinds = _kinds(written)
    if "prefixItems" in written:
        rest = [written["items"]] if "items" in written else []
        written["items"] = _any_of([*written.pop("prefixItems"), *rest])
    if "array" in kinds and "items" not in written:
        written["items"] = {}
    others = written.pop("patternProperties", None)
    if others and "additionalProperties" not in written:
        written["additionalProperties"] = _any_of(list(others.values()))
    if "properties" in written:
        for keyword in ("anyOf", "oneOf"):
            if all("properties" not in part and part.get("required") for part in written.get(keyword, [{}])):
                _join(written, written.pop(keyword))
        if "required" in written:
            written["required"] = [name for name in written["required"] if name in written["properties"]]
    return written


def _without_loose_names(value: Any) -> Any:
    """Returns parts of a schema that require only properties which they have themselves."""
    if isinstance(value, list):
        return [_without_loose_names(part) for part in value]
    if not isinstance(value, dict):
        return value
    is_loose = isinstance(value.get("required"), list) and "properties" not in value
    return {
        key: part if key in ("default", "const", "enum", "examples") else _without_loose_names(part)
        for key, part in value.items()
        if not (is_loose and key == "required")
    }


def _implied_type(written: Node) -> str | list[str] | None:
    if any(keyword in written for keyword in _OF_OBJECTS):
        return "object"
    if any(keyword in written for keyword in _OF_ARRAYS):
        return "array"
    values = written.get("enum") or ([written["const"]] if "const" in written else [])
    kinds = list(dict.fromkeys(_type_of(value) for value in values))
    return kinds[0] if len(kinds) == 1 else kinds or None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _kinds(node: Mapping[str, Any]) -> list[str]:
    kind = node.get("type", [])
    return kind if isinstance(kind, list) else [kind]


def _short(node: Mapping[str, Any]) -> Node:
    """Returns a schema without its parts, which would be too many."""
    kinds = [kind for kind in _kinds(node) if kind in _TYPES] or ["object"]
    short: Node = {"type": kinds[0]}
    if isinstance(node.get("description"), str):
        short["description"] = node["description"]
    return {**short, "items": {}} if kinds[0] == "array" else short


def _any_of(parts: Sequence[Node]) -> Node:
    unique = [part for index, part in enumerate(parts) if part not in parts[:index]]
    return {"anyOf": unique} if len(unique) > 1 else unique[0] if unique else {}


def _merged(node: Node) -> Node:
    """Returns a schema with the properties of its `allOf`."""
    merged = {key: value for key, value in node.items() if key != "allOf"}
    for part in (_merged(each) for each in node.get("allOf", ())):
        merged["properties"] = {**part.get("properties", {}), **merged.get("properties", {})}
        merged["required"] = list(dict.fromkeys([*merged.get("required", ()), *part.get("required", ())]))
        merged = {**part, **merged}
    return merged


def _join(root: Node, alternatives: Sequence[Node]) -> None:
    """Adds the properties of all alternatives to the root, which says in its description what they require."""
    known = dict(root.get("properties", {}))
    for part in alternatives:
        for name, value in part.get("properties", {}).items():
            known.setdefault(name, value)
    own = set(root.get("required", ()))
    sets = [[name for name in part.get("required", ()) if name in known] for part in alternatives]
    common = [name for name in sets[0] if all(name in each for each in sets)]
    root["properties"], root["required"] = known, [*root.get("required", ()), *(n for n in common if n not in own)]
    others = [", ".join(name for name in each if name not in root["required"]) for each in sets]
    if all(others) and len(others) > 1:
        text = f"Give one of these sets of arguments: {'; or '.join(dict.fromkeys(others))}."
        root["description"] = " ".join(filter(None, (root.get("description"), text)))


def _resolved(whole: Mapping[str, Any], reference: str) -> Any:
    """Returns what a reference within the schema refers to, or None."""
    found: Any = whole
    for part in reference.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        if not key:
            continue
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return None
    return found if reference.startswith("#") else None


def _sent_names(names: Iterable[str]) -> dict[str, str]:
    """Returns the name of each argument as providers accept it: at most 64 letters, digits, `_`, `.` and `-`."""
    known = list(names)
    sent = {name: name for name in known if _KEY.fullmatch(name)}
    taken = set(sent)
    for name in known:
        if name in sent:
            continue
        base = _NO_KEY.sub("_", name)[:60] or "_"
        chosen, number = base, 2
        while chosen in taken:
            chosen, number = f"{base}_{number}", number + 1
        sent[name] = chosen
        taken.add(chosen)
    return sent


def _open_api_properties(node: Node) -> Node:
    return {name: _open_api(part) for name, part in node.get("properties", {}).items()}


def _open_api(node: Node) -> Node:
    """Returns a schema, as `_Writer` wrote it, in the subset of OpenAPI: each part has one type, or alternatives."""
    node = _merged(node)
    notes: list[str] = []
    parts = [part for part in [*node.get("anyOf", ()), *node.get("oneOf", ())] if _kinds(part) != ["null"]]
    is_nullable = len(parts) < len(node.get("anyOf", ())) + len(node.get("oneOf", ())) or "null" in _kinds(node)
    if len(parts) == 1:
        node = {**parts[0], **{key: value for key, value in node.items() if key not in ("anyOf", "oneOf")}}
        parts = []
    kinds = [kind for kind in _kinds(node) if kind != "null"]
    plain: Node = {key: node[key] for key in _OPEN_API if key in node}
    if is_nullable:
        plain["nullable"] = True
    values = node.get("enum") or ([node["const"]] if "const" in node else [])
    texts = [value for value in values if isinstance(value, str)]
    if len(kinds) > 1 and not parts:
        bare = {key: value for key, value in node.items() if key not in ("title", "description")}
        parts = [{**bare, "type": kind} for kind in kinds]
    if parts and not texts:
        return {**plain, "anyOf": [_open_api(part) for part in parts]}
    kind = kinds[0] if kinds else "string"
    if texts:
        kind, plain["enum"] = "string", texts
    elif values:
        notes.append(f"One of: {', '.join(json.dumps(value) for value in values)}.")
    plain["type"] = kind
    if node.get("format") in _OPEN_API_FORMATS:
        plain["format"] = node["format"]
    if kind == "array":
        plain["items"] = _open_api(node.get("items", {}))
    if kind == "object" and node.get("properties"):
        plain["properties"] = _open_api_properties(node)
        if node.get("required"):
            plain["required"] = node["required"]
    if notes:
        plain["description"] = " ".join(filter(None, (plain.get("description"), *notes)))
    return {key: plain[key] for key in dict.fromkeys((*node, *plain)) if key in plain}


def strict_schema(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the schema with every property required, optional ones nullable, and no other properties.

    Returns None if the schema has no such form (free-form objects, combinators that strict mode refuses).
    """
    try:
        return _strict(parameters, is_root=True)
    except _NotStrictable:
        return None


def response_schema(response_format: ResponseFormat) -> dict[str, Any]:
    """Returns the schema of a response format as an object.

    Raises:
        ProviderOptionsInvalid: it is not a JSON object.
    """
    try:
        schema = json.loads(response_format.schema or "{}")
    except ValueError as error:
        raise ProviderOptionsInvalid(f"The schema of the response format is not JSON: {error}.") from error
    if not isinstance(schema, dict):
        raise ProviderOptionsInvalid("The schema of the response format is not a JSON object.")
    return _closed(schema) if response_format.strict else schema


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema without other properties, as strict mode requires; unchanged if that would change more."""
    closed = strict_schema(schema)
    changes_more = closed is None or json.dumps(closed).count('"null"') != json.dumps(schema).count('"null"')
    return schema if closed is None or changes_more else closed


def with_own_arguments(calls: tuple[AnsweredCall, ...], request: LlmRequest) -> tuple[AnsweredCall, ...]:
    """Converts calls, made under the schemas that were sent, to the tools' own schemas.

    The arguments get their own names back, and lose the nulls that strict schemas demand for optional ones.
    """
    schemas = {tool.name: tool for tool in request.tools}
    return tuple(
        replace(call, arguments=_own_arguments(call.arguments, schemas[call.name], request))
        if call.name in schemas
        else call
        for call in calls
    )


def _own_arguments(arguments: str, tool: ToolSchema, request: LlmRequest) -> str:
    if request.settings.strict_tool_schemas:
        arguments = _without_added_nulls(arguments, tool.parameters)
    names = _renamed(_Identity(tool))
    if not names:
        return arguments
    try:
        decoded = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(decoded, dict):
        return arguments
    return json.dumps({names.get(name, name): value for name, value in decoded.items()}, ensure_ascii=False)


def _without_added_nulls(arguments: str, parameters: Mapping[str, Any]) -> str:
    if "null" not in arguments:
        return arguments
    try:
        decoded = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(decoded, dict):
        return arguments
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or ()
    remaining = {
        name: value
        for name, value in decoded.items()
        if value is not None or name in required or name not in properties or _is_nullable(properties[name])
    }
    return arguments if len(remaining) == len(decoded) else json.dumps(remaining, ensure_ascii=False)


class _NotStrictable(Exception):
    pass


def _strict(schema: Mapping[str, Any], *, is_root: bool = False) -> dict[str, Any]:
    if any(keyword in schema for keyword in _UNSUPPORTED):
        raise _NotStrictable
    strict = {key: value for key, value in schema.items() if key != "default"}
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        is_free_form = not properties and not is_root
        if is_free_form or schema.get("additionalProperties") not in (None, False):
            raise _NotStrictable
        required = schema.get("required") or ()
        strict["type"] = "object"
        strict["properties"] = {
            name: _strict(inner) if name in required else _nullable(_strict(inner))
            for name, inner in properties.items()
        }
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if "anyOf" in schema:
        strict["anyOf"] = [_strict(inner) for inner in schema["anyOf"]]
    if "$defs" in schema:
        strict["$defs"] = {name: _strict(inner) for name, inner in schema["$defs"].items()}
    if not any(key in strict for key in ("type", "anyOf", "$ref", "enum", "const")):
        raise _NotStrictable
    return strict


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if _is_nullable(schema):
        return schema
    kind = schema.get("type")
    if "enum" in schema or kind is None:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [*(kind if isinstance(kind, list) else [kind]), "null"]}


def _is_nullable(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    return any(_is_nullable(inner) for inner in schema.get("anyOf") or ())


def is_structured(response_format: ResponseFormat | None) -> bool:
    """Returns whether an answer must be JSON."""
    return response_format is not None and response_format.kind != "text"


def text_problem(text: str, response_format: ResponseFormat) -> str | None:
    """Returns why a text does not match the format, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    return value_problem(value, response_format)


def value_problem(value: Any, response_format: ResponseFormat) -> str | None:
    """Returns why a JSON value does not match the format, or None."""
    if response_format.kind == "json_object":
        return None if isinstance(value, dict) else "it is not a JSON object"
    try:
        error = next(iter(validator(response_format.schema or "{}").iter_errors(value)), None)
    except UnicodeEncodeError:
        return "a text in it holds half of a surrogate pair"
    if error is None:
        return None
    path = "".join(f"[{step!r}]" for step in error.instance_path)
    return first_line(f"{path + ': ' if path else ''}{error.message}")


def format_instruction(response_format: ResponseFormat, model: ModelInfo) -> str | None:
    """Returns the instruction for the model if its API does not enforce the format.

    Plain JSON always needs one: OpenAI requires the word in the prompt, and other APIs have no field for it.
    """
    has_schema = response_format.kind == "json_schema"
    if has_schema and dialect_for(*model.vendor).json_schema and model.api != Api.REHEARSAL:
        return None
    suffix = f" that fits this JSON schema: {response_format.schema}" if has_schema else ""
    return f"When you answer in plain text, answer with one JSON object and nothing else{suffix or '.'}"


def with_message_format(schema: ToolSchema, response_format: ResponseFormat, argument: str) -> ToolSchema:
    """Returns the tool that speaks to the user, with its message argument in the required format."""
    properties = dict(schema.parameters.get("properties") or {})
    message = properties.get(argument)
    if message is None:
        return schema
    message_schema = (
        json.loads(response_format.schema or "{}") if response_format.kind == "json_schema" else {"type": "object"}
    )
    properties[argument] = {"description": message.get("description", ""), **message_schema}
    return replace(schema, parameters={**schema.parameters, "properties": properties})
