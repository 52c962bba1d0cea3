"""Compactions: their settings and results."""

from dataclasses import asdict, replace
from typing import Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_types.convert import usage_to_proto

from mnemesh_orchestrator.model.compaction import CompactionResult, CompactionSettings
from mnemesh_orchestrator.rpc.convert.fields import enum_from_proto, plain_fields, present_fields
from mnemesh_orchestrator.rpc.convert.model_settings import settings_from_proto, settings_to_proto

_MODE_TO_PROTO: Final = {
    "sliding_window": pb.COMPACTION_MODE_SLIDING_WINDOW,
    "all": pb.COMPACTION_MODE_ALL,
    "self_compact_sliding_window": pb.COMPACTION_MODE_SELF_COMPACT_SLIDING_WINDOW,
    "self_compact_all": pb.COMPACTION_MODE_SELF_COMPACT_ALL,
    "episodic": pb.COMPACTION_MODE_EPISODIC,
}
_MODE_FROM_PROTO: Final = {number: mode for mode, number in _MODE_TO_PROTO.items()} | {
    pb.COMPACTION_MODE_UNSPECIFIED: "sliding_window"
}
_OPTIONAL: Final = (
    *("model", "prompt", "prompt_acknowledgement", "clip_chars", "memory_scope"),
    *("sliding_window_percentage", "trigger_ratio"),
)


def compaction_settings_to_proto(settings: CompactionSettings | None) -> pb.CompactionSettings | None:
    """Returns the message of the settings, or None."""
    if settings is None:
        return None
    values = plain_fields(settings)
    values["mode"] = _MODE_TO_PROTO[settings.mode]
    if settings.model_settings is not None:
        values["model_settings"] = settings_to_proto(settings.model_settings)
    return pb.CompactionSettings(**values)


def compaction_settings_from_proto(message: pb.CompactionSettings, field: str) -> CompactionSettings:
    """Returns the settings of a message. Raises InvalidArgument if the mode is unknown."""
    settings = settings_from_proto(message.model_settings) if message.HasField("model_settings") else None
    mode = enum_from_proto(_MODE_FROM_PROTO, message.mode, f"{field}.mode")
    return CompactionSettings(mode=mode, model_settings=settings, **present_fields(message, *_OPTIONAL))


def agent_compaction_from_proto(agent: pb.Agent) -> CompactionSettings | None:
    """Returns the compaction settings of an agent, or None for the defaults. Raises InvalidArgument."""
    if not agent.HasField("compaction_settings"):
        return None
    return compaction_settings_from_proto(agent.compaction_settings, "agent.compaction_settings")


def compaction_override_from_proto(request: rpc.CompactConversationRequest) -> CompactionSettings | None:
    """Returns the settings of one compaction, or None. Their mode is empty if the request has none."""
    if not request.HasField("settings"):
        return None
    settings = compaction_settings_from_proto(request.settings, "settings")
    is_set = request.settings.mode != pb.COMPACTION_MODE_UNSPECIFIED
    return settings if is_set else replace(settings, mode="")


def compaction_result_to_proto(result: CompactionResult) -> pb.CompactionResult:
    """Returns the message of the figures of a compaction."""
    return pb.CompactionResult(**{**asdict(result), "usage": usage_to_proto(result.usage)})
