"""Conversion of the settings of agents: model, compaction, extraction of memory, rules of tools."""

from dataclasses import replace

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import runs_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.agents import CompactionMode, CompactionSettings

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
from mnemesh_orchestrator.rpc.convert.fields import optional_field


def response_format_to_proto(format_: ResponseFormat | None) -> pb.ResponseFormat | None:
    """Returns the message of a response format, or None."""
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


def response_format_from_proto(owner: pb.Agent | runs_pb2.RunConfig | rpc.GenerateTextRequest) -> ResponseFormat | None:
    """Returns the response format of an agent, a run or a request, or None."""
    match owner.response_format.WhichOneof("format") if owner.HasField("response_format") else None:
        case None:
            return None
        case "json_schema":
            message = owner.response_format.json_schema
            return ResponseFormat("json_schema", message.name, message.schema, optional_field(message, "strict"))
        case kind:
            return ResponseFormat(str(kind))


def agent_compaction_from_proto(agent: pb.Agent) -> CompactionSettings | None:
    """Returns the compaction settings of an agent, or None for the defaults. Raises InvalidArgument."""
    if not agent.HasField("compaction_settings"):
        return None
    settings = CompactionSettings.from_proto(agent.compaction_settings, "agent.compaction_settings")
    return replace(settings, mode=settings.mode or CompactionMode.SLIDING_WINDOW)


def compaction_override_from_proto(request: rpc.CompactConversationRequest) -> CompactionSettings | None:
    """Returns the settings of one compaction, or None. Their mode is empty if the request has none."""
    return CompactionSettings.from_proto(request.settings, "settings") if request.HasField("settings") else None


def agent_extraction_from_proto(agent: pb.Agent) -> MemoryExtractionSettings | None:
    """Returns the settings of an agent, or None. Raises InvalidArgument."""
    if not agent.HasField("memory_extraction"):
        return None
    return MemoryExtractionSettings.from_proto(agent.memory_extraction, "agent.memory_extraction")


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


def rule_to_proto(rule: ToolRule) -> pb.ToolRule:
    """Returns the message of a tool rule."""
    name = rule.tool_name
    match rule:
        case RunFirst():
            return pb.ToolRule(run_first=pb.RunFirstRule(tool_name=name, arguments=rule.arguments))
        case ExitLoop():
            return pb.ToolRule(exit_loop=pb.ExitLoopRule(tool_name=name))
        case ContinueLoop():
            return pb.ToolRule(continue_loop=pb.ContinueLoopRule(tool_name=name))
        case Conditional():
            return pb.ToolRule(conditional=_conditional_to_proto(rule))
        case ConstrainChildTools():
            arguments = [pb.ChildArguments(tool_name=n.tool_name, arguments=n.arguments) for n in rule.child_arguments]
            return pb.ToolRule(
                constrain_child_tools=pb.ConstrainChildToolsRule(
                    tool_name=name, children=rule.children, child_arguments=arguments
                )
            )
        case MaxCountPerStep():
            return pb.ToolRule(max_count_per_step=pb.MaxCountPerStepRule(tool_name=name, max_count=rule.max_count))
        case ParentLastTool():
            return pb.ToolRule(parent_last_tool=pb.ParentLastToolRule(tool_name=name, children=rule.children))
        case RequiredBeforeExit():
            return pb.ToolRule(required_before_exit=pb.RequiredBeforeExitRule(tool_name=name))
        case RequiresApproval(arguments_schema=schema):
            return pb.ToolRule(requires_approval=pb.RequiresApprovalRule(tool_name=name, arguments_schema=schema))


def rule_from_proto(rule: pb.ToolRule, field: str) -> ToolRule:
    """Returns the tool rule of a message.

    Raises:
        InvalidArgument: The message has no kind, or an outcome has no output. Metadata: field.
    """
    match rule.WhichOneof("rule"):
        case "run_first":
            first = rule.run_first
            return RunFirst(first.tool_name, first.arguments if first.HasField("arguments") else None)
        case "exit_loop":
            return ExitLoop(rule.exit_loop.tool_name)
        case "continue_loop":
            return ContinueLoop(rule.continue_loop.tool_name)
        case "conditional":
            return _conditional_from_proto(rule.conditional, field)
        case "constrain_child_tools":
            constrain = rule.constrain_child_tools
            arguments = tuple(ChildArguments(item.tool_name, item.arguments) for item in constrain.child_arguments)
            return ConstrainChildTools(constrain.tool_name, tuple(constrain.children), arguments)
        case "max_count_per_step":
            return MaxCountPerStep(rule.max_count_per_step.tool_name, rule.max_count_per_step.max_count)
        case "parent_last_tool":
            return ParentLastTool(rule.parent_last_tool.tool_name, tuple(rule.parent_last_tool.children))
        case "required_before_exit":
            return RequiredBeforeExit(rule.required_before_exit.tool_name)
        case "requires_approval":
            asked = rule.requires_approval
            return RequiresApproval(asked.tool_name, optional_field(asked, "arguments_schema"))
        case _:
            raise InvalidArgument(f"{field} must have a kind of rule.", field=field)


def _conditional_to_proto(rule: Conditional) -> pb.ConditionalRule:
    outcomes = []
    for outcome in rule.outcomes:
        match outcome.output:
            case bool() as value:
                outcomes.append(pb.ConditionalOutcome(boolean=value, child=outcome.child))
            case int() as value:
                outcomes.append(pb.ConditionalOutcome(integer=value, child=outcome.child))
            case float() as value:
                outcomes.append(pb.ConditionalOutcome(number=value, child=outcome.child))
            case value:
                outcomes.append(pb.ConditionalOutcome(text=value, child=outcome.child))
    return pb.ConditionalRule(
        tool_name=rule.tool_name,
        outcomes=outcomes,
        default_child=rule.default_child,
        require_output_mapping=rule.require_output_mapping,
    )


def _conditional_from_proto(rule: pb.ConditionalRule, field: str) -> Conditional:
    outcomes = []
    for outcome in rule.outcomes:
        kind = outcome.WhichOneof("output")
        if kind is None:
            raise InvalidArgument(f"{field} must have an output for each outcome.", field=field)
        outcomes.append(ConditionalOutcome(getattr(outcome, kind), outcome.child))
    return Conditional(
        rule.tool_name,
        tuple(outcomes),
        rule.default_child if rule.HasField("default_child") else None,
        rule.require_output_mapping,
    )
