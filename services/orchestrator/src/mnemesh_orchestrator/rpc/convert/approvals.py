"""Answers to approvals, and tools that the client runs."""

from collections.abc import Sequence

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_types.convert import tool_return_from_proto
from mnemesh_types.messages import ApprovalDecision, Approve, ClientReturn, Deny
from msgspec import structs

from mnemesh_orchestrator.model.approvals import ApprovalAnswer
from mnemesh_orchestrator.model.run_config import ClientTool, RunConfig
from mnemesh_orchestrator.rpc.convert.fields import optional_field


def answer_from_proto(request: rpc.AnswerApprovalRequest, config: RunConfig | None) -> ApprovalAnswer:
    """Returns the answer to an approval.

    Raises:
        InvalidArgument: A decision has no kind, or its return is about another call. Metadata: field.
    """
    decisions = tuple(_decision(item, f"decisions[{index}]") for index, item in enumerate(request.decisions))
    approval_id = optional_field(request, "approval_request_id")
    if approval_id is not None:
        require_id(approval_id, "message", "approval_request_id")
    return ApprovalAnswer(decisions, approval_id, config)


def _decision(item: message_pb2.ApprovalDecision, field: str) -> ApprovalDecision:
    match item.WhichOneof("decision"):
        case "approve":
            return Approve(item.tool_call_id)
        case "deny":
            return Deny(item.tool_call_id, optional_field(item.deny, "reason"))
        case "client_return":
            return _client_return(item, f"{field}.client_return")
        case _:
            raise InvalidArgument(f"{field} must be approve, deny or client_return.", field=field)


def _client_return(item: message_pb2.ApprovalDecision, field: str) -> ClientReturn:
    if item.client_return.tool_call_id not in ("", item.tool_call_id):
        path = f"{field}.tool_call_id"
        raise InvalidArgument(f"{path} must be the id of the decision's call.", field=path)
    returned = tool_return_from_proto(item.client_return, field)
    return ClientReturn(item.tool_call_id, structs.replace(returned, tool_call_id=item.tool_call_id))


def client_tools_from_proto(tools: Sequence[pb.ClientTool]) -> tuple[ClientTool, ...]:
    """Returns the tools that a client runs."""
    return tuple(ClientTool(tool.name, tool.parameters, tool.description) for tool in tools)


def client_tool_to_proto(tool: ClientTool) -> pb.ClientTool:
    """Returns the message of a tool that the client runs."""
    return pb.ClientTool(name=tool.name, description=tool.description or None, parameters=tool.parameters)
