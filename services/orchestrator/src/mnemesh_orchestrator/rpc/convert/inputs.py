"""Messages that clients send."""

from collections.abc import Sequence
from typing import Final

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.convert import part_to_proto, parts_from_proto
from mnemesh_types.messages import Role

from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.rpc.convert.fields import present_fields

_ROLE_TO_PROTO: Final = {
    Role.USER: message_pb2.ROLE_USER,
    Role.SYSTEM: message_pb2.ROLE_SYSTEM,
    Role.ASSISTANT: message_pb2.ROLE_ASSISTANT,
}
_ROLE_FROM_PROTO: Final = {number: role for role, number in _ROLE_TO_PROTO.items()} | {
    message_pb2.ROLE_UNSPECIFIED: Role.USER
}


def inputs_from_proto(messages: Sequence[pb.InputMessage], field: str = "messages") -> tuple[InputMessage, ...]:
    """Returns the messages that a client sends, without parts of an unknown kind.

    Raises:
        InvalidArgument: The role of one cannot be sent. Metadata: field.
    """
    return tuple(_input_from_proto(message, f"{field}[{index}]") for index, message in enumerate(messages))


def _input_from_proto(message: pb.InputMessage, field: str) -> InputMessage:
    if message.role not in _ROLE_FROM_PROTO:
        raise InvalidArgument(f"{field}.role must be USER, SYSTEM or ASSISTANT.", field=f"{field}.role")
    return InputMessage(
        content=tuple(parts_from_proto(message.content)),
        role=_ROLE_FROM_PROTO[message.role],
        **present_fields(message, "name", "otid", "sender_id", "group_id"),
    )


def input_to_proto(message: InputMessage) -> pb.InputMessage:
    """Returns the message of an input."""
    return pb.InputMessage(
        role=_ROLE_TO_PROTO[message.role],
        content=[part_to_proto(part) for part in message.content],
        name=message.name,
        otid=message.otid,
        sender_id=message.sender_id,
        group_id=message.group_id,
    )
