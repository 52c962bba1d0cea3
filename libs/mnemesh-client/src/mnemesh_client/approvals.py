"""Decisions about calls that wait: for a person, or for a tool that the client runs."""

from __future__ import annotations

from mnemesh.types.v1 import message_pb2

from mnemesh_client.inputs import text_part


def approve(tool_call_id: str) -> message_pb2.ApprovalDecision:
    """The tool may run."""
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, approve=message_pb2.Approve())


def deny(tool_call_id: str, reason: str | None = None) -> message_pb2.ApprovalDecision:
    """The tool must not run; the model is told the reason."""
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, deny=message_pb2.Deny(reason=reason))


def returned(
    tool_call_id: str,
    text: str,
    *,
    failed: bool = False,
    stdout: list[str] | None = None,
    stderr: list[str] | None = None,
) -> message_pb2.ApprovalDecision:
    """The client ran the tool itself, and `text` is what it came to."""
    status = message_pb2.TOOL_RETURN_STATUS_ERROR if failed else message_pb2.TOOL_RETURN_STATUS_SUCCESS
    given = message_pb2.ToolReturn(
        tool_call_id=tool_call_id, status=status, content=[text_part(text)], stdout=stdout or (), stderr=stderr or ()
    )
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, client_return=given)
