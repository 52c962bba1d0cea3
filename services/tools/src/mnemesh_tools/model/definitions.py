"""The rules of a tool's definition, and the origin of its name and schema."""

import json
import re
import sys
from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.secret_variables import require_valid_variables
from mnemesh_kit.text import require_json_object, require_text, require_texts
from mnemesh_sandbox.egress.policy import ANY_HOST, MAX_HOSTS, HostInvalid, NetworkGrant, grant_of
from mnemesh_types.tools import Requirement, SourceType, ToolType

from mnemesh_tools.model.packages import npm_line, require_known_models, requirement_line
from mnemesh_tools.model.tools import (
    DEFAULT_RETURN_CHARS,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_REQUIREMENTS,
    MAX_RETURN_CHARS,
    MAX_SCHEMA_CHARS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    MAX_TEXT_CHARS,
    MAX_TIMEOUT_SECONDS,
    ToolSpec,
)
from mnemesh_tools.schema import SourceFacts, check_name

_MAX_DEPTH: Final = 64
_DEFAULT_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def parse_object(text: str, field: str) -> dict[str, Any]:
    """Returns the JSON object in a text.

    Raises:
        InvalidArgument: The text is not one, is nested too deeply, or has a number with too many digits.
    """
    try:
        parsed: dict[str, Any] = json.loads(require_json_object(text, field))
    except ValueError as error:  # the text is JSON, so the conversion of a number failed
        digits = sys.get_int_max_str_digits()
        raise InvalidArgument(f"{field} has an integer with more than {digits:,} digits.", field=field) from error
    level: list[Any] = [parsed]
    for _ in range(_MAX_DEPTH):
        level = [part for value in level for part in _parts(value) if isinstance(part, (dict, list))]
        if not level:
            return parsed
    raise InvalidArgument(f"{field} must be nested at most {_MAX_DEPTH} deep.", field=field)


def require_json_schema(schema: dict[str, Any], field: str) -> None:
    """Checks that `schema`, from `parse_object`, is a JSON schema, of the draft 2020-12 unless it names another one.

    Raises:
        InvalidArgument: It is not.
    """
    # Imported at the first use: most tools have a generated schema.
    import jsonschema_rs  # noqa: PLC0415

    try:
        jsonschema_rs.meta.validate({"$schema": _DEFAULT_DRAFT, **schema})
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        where = "/".join(str(part) for part in getattr(error, "instance_path", []))
        place = f" at {where[:100]}" if where else ""
        raise InvalidArgument(f"{field} is not a JSON schema{place}: {_first_line(error)}.", field=field) from error


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _first_line(error: Exception) -> str:
    text = getattr(error, "message", None) or str(error)
    return str(text).split("\n", 1)[0][:200].rstrip(".")


_PACKAGE: Final = re.compile(r"[A-Za-z0-9@][A-Za-z0-9._/@\[\],-]{0,199}")
_VERSION: Final = re.compile(r"[A-Za-z0-9.*+!_^~<>=,| -]{1,100}")
_MAX_CHARS: Final = {"source_code": None, "json_schema": MAX_SCHEMA_CHARS, "args_json_schema": MAX_SCHEMA_CHARS}
_MAX_NUMBERS: Final = {"return_char_limit": MAX_RETURN_CHARS, "timeout_seconds": MAX_TIMEOUT_SECONDS}
# A change of one of these fields without a schema generates the schema again.
_SCHEMA_SOURCES: Final = frozenset({"source_code", "source_type", "args_json_schema"})


Source = tuple[SourceType, str]
"""A language, and a text in it."""


def source_of(spec: ToolSpec) -> Source | None:
    """Returns the source that the name and the schema of the tool come from; None for a tool without one."""
    return (spec.source_type, spec.source_code) if spec.type is ToolType.CUSTOM and spec.source_code else None


def complete_spec(spec: ToolSpec, facts: SourceFacts | None = None, *, is_source_new: bool = True) -> ToolSpec:
    """Returns `spec`, validated, with its name, its schema and its defaults filled in.

    Args:
        spec: The definition.
        facts: The facts about `source_of(spec)`; None if it has none.
        is_source_new: True if the source was written with the definition. Its schema then has the name of the function;
            a later schema can rename the tool.

    Raises:
        InvalidArgument: A field breaks its rule.
        ToolSourceInvalid: The source yields no schema.
    """
    require_valid_fields(spec)
    schema = _schema(spec, facts, is_source_new)
    return replace(
        spec,
        name=schema["name"],
        json_schema=json.dumps(schema, ensure_ascii=False),
        tags=tuple(dict.fromkeys(spec.tags)),
        return_char_limit=spec.return_char_limit or DEFAULT_RETURN_CHARS,
        timeout_seconds=spec.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
    )


def writes_source(written: Collection[str]) -> bool:
    """Returns whether an update of these fields changes the source."""
    return bool({"source_code", "source_type"} & set(written))


def merge_spec(stored: ToolSpec, changes: ToolSpec, written: Collection[str]) -> ToolSpec:
    """Returns `stored` with the fields `written` taken from `changes`. `complete_spec` completes it.

    A changed source or argument schema generates the schema again, unless the schema is written, too. A changed source
    or schema of a custom tool also changes its name, unless the name is written.
    """
    merged = replace(stored, **{name: getattr(changes, name) for name in written})
    if stored.type is ToolType.CUSTOM:
        regenerated = bool(_SCHEMA_SOURCES & set(written)) and "json_schema" not in written
        if "name" not in written and ("json_schema" in written or regenerated):
            merged = replace(merged, name="")
        if regenerated:
            merged = replace(merged, json_schema="")
    return merged


def parse_parameters(text: str, field: str) -> dict[str, Any]:
    """Returns the JSON schema of the arguments, which must be of type object.

    Raises:
        InvalidArgument: The text is not such a schema.
    """
    return _require_parameters(parse_object(text, field), field)


def require_valid_fields(spec: ToolSpec) -> None:
    """Checks the fields of a definition, apart from its source and its schemas.

    Raises:
        InvalidArgument: A field breaks its rule.
    """
    for item in fields(spec):
        value = getattr(spec, item.name)
        if isinstance(value, str):
            require_text(value, f"tool.{item.name}", max_chars=_MAX_CHARS.get(item.name, MAX_TEXT_CHARS))
    require_texts(spec.tags, "tool.tags", max_items=MAX_TAGS, min_chars=1, max_chars=MAX_TAG_CHARS)
    for name, maximum in _MAX_NUMBERS.items():
        if not 0 <= getattr(spec, name) <= maximum:
            raise InvalidArgument(f"tool.{name} must be between 0 and {maximum}.", field=f"tool.{name}")
    require_valid_packages(spec.pip_requirements, "tool.pip_requirements")
    require_valid_packages(spec.npm_requirements, "tool.npm_requirements", is_pip=False)
    network_grant(spec.network_hosts, "tool.network_hosts", allow_network=False)
    _require_valid_secrets(spec)
    if spec.metadata is not None:
        require_json_object(spec.metadata, "tool.metadata")


def _require_valid_secrets(spec: ToolSpec) -> None:
    field = "tool.secrets"
    if spec.secrets and spec.type is not ToolType.CUSTOM:
        raise InvalidArgument(f"{field} must be empty for a tool of type {spec.type.value}.", field=field)
    values = {secret.name: secret.value for secret in spec.secrets}
    if len(values) < len(spec.secrets):
        raise InvalidArgument(f"{field} must not have the same name twice.", field=field)
    require_valid_variables(values, field)


def network_grant(hosts: tuple[str, ...], field: str, *, allow_network: bool) -> NetworkGrant | None:
    """Returns the network access of a tool with these hosts; None if it has none.

    Raises:
        InvalidArgument: A text names no host, or there are too many.
    """
    if len(hosts) > MAX_HOSTS:
        raise InvalidArgument(f"{field} must have at most {MAX_HOSTS} values.", field=field)
    try:
        grant = grant_of(hosts)
    except HostInvalid as error:
        raise InvalidArgument(f"{field}: {error}.", field=field) from error
    return ANY_HOST if allow_network else grant if hosts else None


def require_valid_packages(requirements: tuple[Requirement, ...], field: str, *, is_pip: bool = True) -> None:
    """Checks the packages that a tool needs.

    Raises:
        InvalidArgument: One is not the name and the version of a package, or there are too many.
    """
    if len(requirements) > MAX_REQUIREMENTS:
        raise InvalidArgument(f"{field} must have at most {MAX_REQUIREMENTS} values.", field=field)
    for requirement in requirements:
        if not _PACKAGE.fullmatch(requirement.name):
            raise InvalidArgument(f"{field}: '{requirement.name[:100]}' is not the name of a package.", field=field)
        if requirement.version is not None and not _VERSION.fullmatch(requirement.version):
            raise InvalidArgument(f"{field}: '{requirement.version[:100]}' is not a version.", field=field)
        try:
            requirement_line(requirement) if is_pip else npm_line(requirement)
        except ValueError as error:
            raise InvalidArgument(f"{field}: {error}.", field=field) from error


def _schema(spec: ToolSpec, facts: SourceFacts | None, is_source_new: bool) -> dict[str, Any]:
    if spec.type is ToolType.CUSTOM and not spec.source_code:
        raise InvalidArgument("tool.source_code is required for a custom tool.", field="tool.source_code")
    if spec.type is ToolType.MCP and not spec.mcp_server_id:
        raise InvalidArgument("tool.mcp_server_id is required for an MCP tool.", field="tool.mcp_server_id")
    if facts is None:
        return _schema_of_author(spec)
    require_known_models(facts, spec.pip_requirements, "tool.source_code")
    return _schema_of_author(spec) if spec.json_schema and not is_source_new else _schema_of_source(spec, facts)


def _schema_of_source(spec: ToolSpec, facts: SourceFacts) -> dict[str, Any]:
    if spec.name not in ("", facts.name):
        raise InvalidArgument(
            f"tool.name is '{spec.name}', but the last function of the source is '{facts.name}'.", field="tool.name"
        )
    if spec.json_schema:
        return _require_schema(parse_object(spec.json_schema, "tool.json_schema"), facts.name)
    if spec.args_json_schema is None:
        return facts.require_schema("tool.source_code").to_dict()
    parameters = parse_parameters(spec.args_json_schema, "tool.args_json_schema")
    # The arguments have a schema of the author, so a source without a complete docstring is accepted.
    return {"name": facts.name, "description": spec.description or facts.description, "parameters": parameters}


def _schema_of_author(spec: ToolSpec) -> dict[str, Any]:
    field = "tool.json_schema"
    if not spec.json_schema:
        kind = f"a {spec.source_type.value} tool" if spec.type is ToolType.CUSTOM else f"type {spec.type.value}"
        raise InvalidArgument(f"{field} is required for {kind}, because none can be generated.", field=field)
    schema = parse_object(spec.json_schema, field)
    name = schema.get("name")
    if not isinstance(name, str):
        raise InvalidArgument(f"{field} must have a name.", field=field)
    check_name(name, field)
    if spec.name not in ("", name):
        raise InvalidArgument(f"tool.name is '{spec.name}', but the name in the schema is '{name}'.", field="tool.name")
    return _require_schema(schema, name)


def _require_schema(schema: dict[str, Any], name: str) -> dict[str, Any]:
    field = "tool.json_schema"
    if schema.get("name") != name:
        raise InvalidArgument(
            f"{field} must have the name '{name}', which is the last function of the source.", field=field
        )
    description = schema.get("description", "")
    if not isinstance(description, str):
        raise InvalidArgument(f"{field}: description must be a string.", field=field)
    parameters = schema.get("parameters", {"type": "object", "properties": {}, "required": []})
    return {"name": name, "description": description, "parameters": _require_parameters(parameters, field)}


def _require_parameters(parameters: Any, field: str) -> dict[str, Any]:
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise InvalidArgument(f"{field}: the parameters must be a JSON schema of type object.", field=field)
    require_json_schema(parameters, field)
    properties: dict[str, Any] = parameters.get("properties", {})
    for name in parameters.get("required", []):
        if name not in properties:
            raise InvalidArgument(f"{field}: required names {json.dumps(name)}, which is not a property.", field=field)
    return parameters
