"""The messages that clients send."""

from dataclasses import dataclass

from mnemesh_types.messages import ContentPart, Role


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message that a client sends. It becomes a stored message when its step is committed."""

    content: tuple[ContentPart, ...]
    role: Role = Role.USER
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
