"""The extraction of facts: its settings and its results."""

from typing import Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_types.convert import usage_to_proto

from mnemesh_orchestrator.model.episodes import Change
from mnemesh_orchestrator.model.memory_extraction import (
    ExtractionMode,
    ExtractionReport,
    ExtractionScope,
    MemoryExtractionSettings,
)
from mnemesh_orchestrator.rpc.convert.fields import enum_from_proto, plain_fields, present_fields
from mnemesh_orchestrator.rpc.convert.model_settings import settings_from_proto, settings_to_proto

_MODE_TO_PROTO: Final = {
    ExtractionMode.ON_DEMAND: pb.MEMORY_EXTRACTION_MODE_ON_DEMAND,
    ExtractionMode.PER_TURN: pb.MEMORY_EXTRACTION_MODE_PER_TURN,
}
_MODE_FROM_PROTO: Final = {number: mode for mode, number in _MODE_TO_PROTO.items()} | {
    pb.MEMORY_EXTRACTION_MODE_UNSPECIFIED: ExtractionMode.ON_DEMAND
}
_SCOPE_TO_PROTO: Final = {
    ExtractionScope.AGENT: pb.MEMORY_EXTRACTION_SCOPE_AGENT,
    ExtractionScope.SENDER: pb.MEMORY_EXTRACTION_SCOPE_SENDER,
}
_SCOPE_FROM_PROTO: Final = {number: scope for scope, number in _SCOPE_TO_PROTO.items()} | {
    pb.MEMORY_EXTRACTION_SCOPE_UNSPECIFIED: ExtractionScope.AGENT
}
_FIELD: Final = "agent.memory_extraction"


def extraction_settings_to_proto(settings: MemoryExtractionSettings | None) -> pb.MemoryExtractionSettings | None:
    """Returns the message of the settings, or None."""
    if settings is None:
        return None
    values = plain_fields(settings)
    values["mode"], values["scope"] = _MODE_TO_PROTO[settings.mode], _SCOPE_TO_PROTO[settings.scope]
    if settings.model_settings is not None:
        values["model_settings"] = settings_to_proto(settings.model_settings)
    return pb.MemoryExtractionSettings(**values)


def agent_extraction_from_proto(agent: pb.Agent) -> MemoryExtractionSettings | None:
    """Returns the settings of an agent, or None. Raises InvalidArgument."""
    if not agent.HasField("memory_extraction"):
        return None
    message = agent.memory_extraction
    return MemoryExtractionSettings(
        mode=enum_from_proto(_MODE_FROM_PROTO, message.mode, f"{_FIELD}.mode"),
        scope=enum_from_proto(_SCOPE_FROM_PROTO, message.scope, f"{_FIELD}.scope"),
        model_settings=settings_from_proto(message.model_settings) if message.HasField("model_settings") else None,
        **present_fields(message, "frequency", "model", "prompt", "max_calls_per_day"),
    )


def report_to_proto(report: ExtractionReport) -> rpc.ExtractMemoriesResponse:
    """Returns the message of what an extraction has done."""
    return rpc.ExtractMemoriesResponse(
        message_count=report.messages,
        added_count=report.count(Change.ADD),
        superseded_count=report.count(Change.SUPERSEDE),
        confirmed_count=report.count(Change.CONFIRM),
        retracted_count=report.count(Change.RETRACT),
        call_count=report.calls,
        usage=usage_to_proto(report.usage),
        has_more=report.has_more,
        budget_exhausted=report.budget_exhausted,
    )
