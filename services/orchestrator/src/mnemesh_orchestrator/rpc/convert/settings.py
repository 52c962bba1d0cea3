"""Settings of models, compaction and answers between the domain and the contract, and what optional fields carry."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final, TypeVar

from google.protobuf.message import Message as ProtoMessage
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import runs_pb2
from mnemesh_kit.errors import InvalidArgument

from mnemesh_orchestrator.llm.formats import schema_problem
from mnemesh_orchestrator.model.compaction import CompactionResult, CompactionSettings
from mnemesh_orchestrator.model.models import ModelSettings, ResponseFormat

K = TypeVar("K", bound=int)
T = TypeVar("T")

_MODES: Final = {
    "sliding_window": pb.COMPACTION_MODE_SLIDING_WINDOW,
    "all": pb.COMPACTION_MODE_ALL,
    "self_compact_sliding_window": pb.COMPACTION_MODE_SELF_COMPACT_SLIDING_WINDOW,
    "self_compact_all": pb.COMPACTION_MODE_SELF_COMPACT_ALL,
    "episodic": pb.COMPACTION_MODE_EPISODIC,
}
_MODES_BACK: Final = {number: mode for mode, number in _MODES.items()} | {
    pb.COMPACTION_MODE_UNSPECIFIED: "sliding_window"
}

_LONGEST_PROMPT: Final = 100_000


def present(message: ProtoMessage, *names: str) -> dict[str, Any]:
    """The optional fields among `names` that a message carries."""
    given: Any = message
    return {name: getattr(given, name) for name in names if given.HasField(name)}


def plain_values(record: Any) -> dict[str, Any]:
    """The fields of a record that are plain and not None."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | bool)}


def require_known(names: Mapping[K, T], number: K, field: str) -> T:
    """What the number of an enum stands for.

    Raises:
        InvalidArgument: naming the field; a newer client may know more numbers than this server.
    """
    if number not in names:
        raise InvalidArgument(f"{field} holds {number}, which this server does not know.", field=field)
    return names[number]


def require_plain(text: str, field: str) -> str:
    """A text to look for. Raises InvalidArgument, naming the field, where it holds a NUL, as no stored text does."""
    if "\0" in text:
        raise InvalidArgument(f"{field} holds a NUL character.", field=field)
    return text


def require_json_object(text: str, field: str) -> str:
    """The text, if it is a JSON object.

    Raises:
        InvalidArgument: naming the field.
    """
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object or "\0" in text:
        raise InvalidArgument(f"{field} must be the text of a JSON object.", field=field)
    return text


def require_json(text: str, field: str) -> str:
    """The text, if it is a JSON value. Raises InvalidArgument, naming the field."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{field} must be the text of a JSON value.", field=field) from error
    return text


def settings_to_proto(settings: ModelSettings) -> pb.ModelSettings:
    """Settings; those that are None stay absent."""
    return pb.ModelSettings(**plain_values(settings))


def settings_from_proto(settings: pb.ModelSettings, field: str) -> ModelSettings:
    """Settings, checked one by one.

    Raises:
        InvalidArgument: naming the setting.
    """
    given = present(settings, *(f.name for f in fields(ModelSettings)))
    for name in ("context_window", "max_output_tokens"):
        if given.get(name, 1) < 1:
            raise InvalidArgument(f"{field}.{name} must be positive.", field=f"{field}.{name}")
    if not 0 <= given.get("temperature", 0) <= 2:
        raise InvalidArgument(f"{field}.temperature must be between 0 and 2.", field=f"{field}.temperature")
    if "provider_options" in given:
        require_json_object(given["provider_options"], f"{field}.provider_options")
    return ModelSettings(**given)


def compaction_of_agent(agent: pb.Agent) -> CompactionSettings | None:
    """The agent's compaction settings, or None for the defaults. Raises as `compaction_from_proto`."""
    if not agent.HasField("compaction_settings"):
        return None
    return compaction_from_proto(agent.compaction_settings, "agent.compaction_settings")


def compaction_from_proto(given: pb.CompactionSettings, field: str) -> CompactionSettings:
    """Compaction settings, checked one by one.

    Raises:
        InvalidArgument: naming the setting.
    """
    mode = require_known(_MODES_BACK, given.mode, f"{field}.mode")
    numbers = present(given, "sliding_window_percentage", "trigger_ratio")
    for name, share in numbers.items():
        if not 0 < share <= 1:
            raise InvalidArgument(f"{field}.{name} must be above 0 and at most 1.", field=f"{field}.{name}")
    if given.HasField("clip_chars") and given.clip_chars < 1:
        raise InvalidArgument(f"{field}.clip_chars must be positive.", field=f"{field}.clip_chars")
    if given.HasField("model") and not all(given.model.partition("/")):
        raise InvalidArgument(f'{field}.model must be a handle, "provider/model".', field=f"{field}.model")
    if len(given.prompt) > _LONGEST_PROMPT or "\0" in given.prompt:
        raise InvalidArgument(
            f"{field}.prompt must be at most {_LONGEST_PROMPT} characters, none NUL.", field=f"{field}.prompt"
        )
    if given.HasField("memory_scope") and (not 1 <= len(given.memory_scope) <= 255 or "\0" in given.memory_scope):
        raise InvalidArgument(
            f"{field}.memory_scope must have between 1 and 255 characters, none NUL.", field=f"{field}.memory_scope"
        )
    settings = None
    if given.HasField("model_settings"):
        settings = settings_from_proto(given.model_settings, f"{field}.model_settings")
    plain = present(given, "model", "prompt", "prompt_acknowledgement", "clip_chars", "memory_scope")
    return CompactionSettings(mode=mode, model_settings=settings, **numbers, **plain)


def compaction_override(request: rpc.CompactConversationRequest) -> CompactionSettings | None:
    """Settings for one compaction, or None; a mode that is not given is left empty. Raises as the above."""
    if not request.HasField("settings"):
        return None
    given = compaction_from_proto(request.settings, "settings")
    is_named = request.settings.mode != pb.COMPACTION_MODE_UNSPECIFIED
    return given if is_named else replace(given, mode="")


def compaction_result_to_proto(result: CompactionResult) -> pb.CompactionResult:
    """The figures of a compaction."""
    return pb.CompactionResult(**asdict(result))


def compaction_to_proto(settings: CompactionSettings | None) -> pb.CompactionSettings | None:
    """The agent's compaction settings; None stays absent."""
    if settings is None:
        return None
    values = plain_values(settings)
    values["mode"] = _MODES[settings.mode]
    if settings.model_settings is not None:
        values["model_settings"] = settings_to_proto(settings.model_settings)
    return pb.CompactionSettings(**values)


def format_from_proto(owner: pb.Agent | runs_pb2.RunConfig, name: str = "agent") -> ResponseFormat | None:
    """The response format of an agent or a run, which the request calls `name`; None where it has none."""
    match owner.response_format.WhichOneof("format") if owner.HasField("response_format") else None:
        case None:
            return None
        case "json_schema":
            given = owner.response_format.json_schema
            field = f"{name}.response_format.json_schema.schema"
            schema = require_json_object(given.schema, field)
            if (problem := schema_problem(json.loads(schema))) is not None:
                raise InvalidArgument(f"{field} is no JSON schema: {problem}", field=field)
            return ResponseFormat("json_schema", given.name, schema, given.strict if given.HasField("strict") else None)
        case kind:
            return ResponseFormat(str(kind))


def format_to_proto(format_: ResponseFormat | None) -> pb.ResponseFormat | None:
    """A response format; None stays absent."""
    match format_:
        case None:
            return None
        case ResponseFormat(kind="json_schema"):
            schema = pb.JsonSchemaFormat(name=format_.name or "", schema=format_.schema or "", strict=format_.strict)
            return pb.ResponseFormat(json_schema=schema)
        case ResponseFormat(kind="json_object"):
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case _:
            return pb.ResponseFormat(text=pb.TextFormat())
