"""Conversion of the settings of agents: response formats, compaction, and rules of tools."""

from dataclasses import replace

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.agents import CompactionMode, CompactionSettings
from mnemesh_types.twin import Conversion, OneOf, optional_field, register

from mnemesh_orchestrator.model.episodes import Change, ExtractionReport, MemoryExtractionSettings
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_orchestrator.model.rules import (
    ChildArguments,
    Conditional,
    ConditionalOutcome,
    ConstrainChildTools,
    ContinueLoop,
    ExitLoop,
    MaxCountPerStep,
    ParentLastTool,
    RequiredBeforeExit,
    RequiresApproval,
    RunFirst,
    ToolRule,
)

Conversion(pb.MemoryExtractionSettings, MemoryExtractionSettings)
Conversion(pb.ChildArguments, ChildArguments)
Conversion(pb.RunFirstRule, RunFirst)
Conversion(pb.ExitLoopRule, ExitLoop)
Conversion(pb.ContinueLoopRule, ContinueLoop)
Conversion(pb.ConditionalRule, Conditional)
Conversion(pb.ConstrainChildToolsRule, ConstrainChildTools)
Conversion(pb.MaxCountPerStepRule, MaxCountPerStep)
Conversion(pb.ParentLastToolRule, ParentLastTool)
Conversion(pb.RequiredBeforeExitRule, RequiredBeforeExit)
Conversion(pb.RequiresApprovalRule, RequiresApproval)
OneOf[pb.ToolRule, ToolRule](pb.ToolRule, "must have a kind of rule", __package__.partition(".")[0])


def _read_outcome(outcome: pb.ConditionalOutcome, field: str) -> ConditionalOutcome:
    kind = outcome.WhichOneof("output")
    if kind is None:
        rule = field.partition(".conditional.")[0]
        raise InvalidArgument(f"{rule} must have an output for each outcome.", field=rule)
    return ConditionalOutcome(getattr(outcome, kind), outcome.child)


def _write_outcome(outcome: ConditionalOutcome) -> pb.ConditionalOutcome:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "text"}
    return pb.ConditionalOutcome(child=outcome.child, **{kinds[type(outcome.output)]: outcome.output})  # type: ignore[arg-type]


register(pb.ConditionalOutcome, _read_outcome, _write_outcome)


def _write_response_format(format_: ResponseFormat) -> pb.ResponseFormat:
    match format_:
        case ResponseFormat(kind="json_schema"):
            schema = pb.JsonSchemaFormat(name=format_.name or "", schema=format_.schema or "", strict=format_.strict)
            return pb.ResponseFormat(json_schema=schema)
        case ResponseFormat(kind="json_object"):
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case _:
            return pb.ResponseFormat(text=pb.TextFormat())


def read_response_format(message: pb.ResponseFormat, _field: str = "") -> ResponseFormat | None:
    """Returns the format of answers, or None if the message has none."""
    kind = message.WhichOneof("format")
    if kind != "json_schema":
        return None if kind is None else ResponseFormat(kind)
    schema = message.json_schema
    return ResponseFormat(kind, schema.name, schema.schema, optional_field(schema, "strict"))


register(pb.ResponseFormat, read_response_format, _write_response_format)


def with_mode(settings: CompactionSettings | None) -> CompactionSettings | None:
    """Returns the settings of an agent, with the default mode if they have none."""
    return settings and replace(settings, mode=settings.mode or CompactionMode.SLIDING_WINDOW)


def extraction_report_to_proto(report: ExtractionReport) -> rpc.ExtractMemoriesResponse:
    """Returns the message of what an extraction has done."""
    return rpc.ExtractMemoriesResponse(
        message_count=report.messages,
        added_count=report.count(Change.ADD),
        superseded_count=report.count(Change.SUPERSEDE),
        confirmed_count=report.count(Change.CONFIRM),
        retracted_count=report.count(Change.RETRACT),
        call_count=report.calls,
        usage=report.usage.to_proto(),
        has_more=report.has_more,
        budget_exhausted=report.budget_exhausted,
    )
