"""Lists of stored messages, as the recall service returns them."""

from dataclasses import dataclass
from datetime import datetime

from mnemesh_types.messages import Message, Role


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """A page of a list of messages. A message must meet all conditions that are set.

    The messages of one agent are ordered by sequence id, those of several by the order of storage. `page_token` is one
    that recall issued for the same conditions.
    """

    page_size: int = 0
    """0 is recall's default."""
    page_token: str = ""
    ascending: bool = True
    after_id: str | None = None
    before_id: str | None = None
    agent_ids: tuple[str, ...] = ()
    group_id: str | None = None
    roles: tuple[Role, ...] = ()
    start_time: datetime | None = None
    """Inclusive."""
    end_time: datetime | None = None
    """Exclusive."""
    after_sequence_id: int | None = None
    """Exclusive. Needs exactly one agent."""
    until_sequence_id: int | None = None
    """Inclusive. Needs exactly one agent."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """One page of messages. `next_page_token` is empty on the last one."""

    messages: tuple[Message, ...]
    next_page_token: str = ""
