"""Decisions about tool calls that wait for an approval."""

from __future__ import annotations

from mnemesh.types.v1 import message_pb2

from mnemesh_client.inputs import text_part


def approve(tool_call_id: str) -> message_pb2.ApprovalDecision:
    """Returns the decision that the tool may run."""
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, approve=message_pb2.Approve())


def deny(tool_call_id: str, reason: str | None = None) -> message_pb2.ApprovalDecision:
    """Returns the decision that the tool must not run. The model receives the reason."""
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, deny=message_pb2.Deny(reason=reason))


def returned(
    tool_call_id: str,
    text: str,
    *,
    failed: bool = False,
    stdout: list[str] | None = None,
    stderr: list[str] | None = None,
) -> message_pb2.ApprovalDecision:
    """Returns the decision for a call that the client ran itself.

    Args:
        tool_call_id: the id of the call.
        text: the result, or the error if it failed.
        failed: whether the call failed.
        stdout: the lines that the tool printed to stdout.
        stderr: the lines that the tool printed to stderr.
    """
    status = message_pb2.TOOL_RETURN_STATUS_ERROR if failed else message_pb2.TOOL_RETURN_STATUS_SUCCESS
    tool_return = message_pb2.ToolReturn(
        tool_call_id=tool_call_id, status=status, content=[text_part(text)], stdout=stdout or (), stderr=stderr or ()
    )
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, client_return=tool_return)
