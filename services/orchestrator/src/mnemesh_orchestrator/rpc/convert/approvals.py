"""Approvals between the domain and the contract: decisions, and tools that the client runs."""

import json
import re
from collections.abc import Sequence
from typing import Final

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_types.convert import tool_return_from_proto
from mnemesh_types.messages import ApprovalDecision, Approve, ClientReturn, Deny, TextPart, ToolStatus
from msgspec import structs

from mnemesh_orchestrator.model.approvals import ApprovalAnswer
from mnemesh_orchestrator.model.run_config import ClientTool, RunConfig
from mnemesh_orchestrator.rpc.convert.settings import require_json_object

_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_TOOLS: Final = 128
_MOST_DECISIONS: Final = 1_000
_LONGEST_REASON: Final = 10_000
_LONGEST_TEXT: Final = 1_048_576
_MOST_LINES: Final = 1_000


def answer_from_proto(request: rpc.AnswerApprovalRequest, config: RunConfig | None) -> ApprovalAnswer:
    """An answer, checked decision by decision.

    Raises:
        InvalidArgument: naming the field.
    """
    if not request.decisions:
        raise InvalidArgument("decisions must hold one decision at least.", field="decisions")
    if len(request.decisions) > _MOST_DECISIONS:
        raise InvalidArgument(f"decisions may hold {_MOST_DECISIONS} at most.", field="decisions")
    decisions = tuple(_decision(item, f"decisions[{place}]") for place, item in enumerate(request.decisions))
    named = request.approval_request_id if request.HasField("approval_request_id") else None
    if named is not None:
        named = require_id(named, "message", "approval_request_id")
    return ApprovalAnswer(decisions, named, config)


def _decision(item: message_pb2.ApprovalDecision, field: str) -> ApprovalDecision:
    id_ = item.tool_call_id
    if not id_ or " " in id_ or "\0" in id_:
        raise InvalidArgument(f"{field}.tool_call_id is no id of a call.", field=f"{field}.tool_call_id")
    match item.WhichOneof("decision"):
        case "approve":
            return Approve(id_)
        case "deny":
            reason = item.deny.reason if item.deny.HasField("reason") else None
            if reason is not None and (len(reason) > _LONGEST_REASON or "\0" in reason):
                raise InvalidArgument(
                    f"{field}.deny.reason must be at most {_LONGEST_REASON} characters, none NUL.",
                    field=f"{field}.deny.reason",
                )
            return Deny(id_, reason)
        case "client_return":
            return _client_return(item, f"{field}.client_return")
        case _:
            raise InvalidArgument(f"{field} neither approves nor denies, nor gives a return.", field=field)


def _client_return(item: message_pb2.ApprovalDecision, field: str) -> ClientReturn:
    given = item.client_return
    if given.tool_call_id not in ("", item.tool_call_id):
        raise InvalidArgument(f"{field}.tool_call_id is another call's.", field=f"{field}.tool_call_id")
    returned = tool_return_from_proto(given, field)
    if returned.status is ToolStatus.UNSPECIFIED:
        raise InvalidArgument(f"{field}.status must be SUCCESS or ERROR.", field=f"{field}.status")
    parts = returned.content
    if not all(isinstance(part, TextPart) for part in parts):
        raise InvalidArgument(f"{field}.content may hold text only.", field=f"{field}.content")
    for name, texts in (("content", [returned.text]), ("stdout", given.stdout), ("stderr", given.stderr)):
        if len(texts) > _MOST_LINES or sum(map(len, texts)) > _LONGEST_TEXT or any("\0" in line for line in texts):
            raise InvalidArgument(
                f"{field}.{name} must be at most 1 MB in {_MOST_LINES} pieces, without NUL characters.",
                field=f"{field}.{name}",
            )
    return ClientReturn(item.tool_call_id, structs.replace(returned, tool_call_id=item.tool_call_id))


def client_tools_from_proto(tools: Sequence[pb.ClientTool], field: str) -> tuple[ClientTool, ...]:
    """The tools that a client runs.

    Raises:
        InvalidArgument: naming the tool.
    """
    if len(tools) > _MOST_TOOLS:
        raise InvalidArgument(f"{field} may hold {_MOST_TOOLS} tools at most.", field=field)
    made: list[ClientTool] = []
    for place, tool in enumerate(tools):
        at = f"{field}[{place}]"
        if not _TOOL_NAME.fullmatch(tool.name):
            raise InvalidArgument(
                f"{at}.name must be 1 to 64 letters, digits, underscores and hyphens.", field=f"{at}.name"
            )
        if tool.name in {other.name for other in made}:
            raise InvalidArgument(f"{at}.name is taken by another tool of the list.", field=f"{at}.name")
        schema = json.loads(require_json_object(tool.parameters or "{}", f"{at}.parameters"))
        if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
            raise InvalidArgument(f"{at}.parameters is no schema of an object.", field=f"{at}.parameters")
        whole = {"type": "object", "properties": {}, **schema}
        made.append(ClientTool(tool.name, json.dumps(whole, ensure_ascii=False), tool.description))
    return tuple(made)


def client_tool_to_proto(tool: ClientTool) -> pb.ClientTool:
    """A tool that the client runs."""
    return pb.ClientTool(name=tool.name, description=tool.description or None, parameters=tool.parameters)
