"""What calls return in place of messages of the contracts: the hits of searches, and the events of groups."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2

from mnemesh_client.inputs import text_of

if TYPE_CHECKING:
    from mnemesh.archival.v1 import passages_service_pb2
    from mnemesh.recall.v1 import messages_service_pb2

    Response = messages_service_pb2.SearchMessagesResponse | passages_service_pb2.SearchPassagesResponse
    TimeRange = messages_service_pb2.ResolvedTimeRange | passages_service_pb2.ResolvedTimeRange

T = TypeVar("T")
SEND_MESSAGE: Final = "send_message"


class Hits(list[T]):
    """The hits of a search, best first."""

    def __init__(self, hits: Iterable[T], response: "Response") -> None:
        super().__init__(hits)
        self.degraded: bool = response.degraded
        """True if similar texts may be missing, because an embedder or the vector index was unavailable."""
        self.reranked: bool = response.reranked
        """True if a reranker ordered the hits."""
        self.time_ranges: Sequence[TimeRange] = list(response.time_ranges)
        """The ranges of the expressions of time in the queries, such as "last week"."""


def said_by(message: message_pb2.Message) -> str:
    """Returns the name of who said a message, or its role."""
    return message.name or message_pb2.Role.Name(message.role).removeprefix("ROLE_").lower()


def said(message: message_pb2.Message) -> str:
    """Returns what a message says: its text, and the text that its calls of send_message sent."""
    sent = (_sent(call.arguments) for call in message.tool_calls if call.name == SEND_MESSAGE)
    return "\n".join(text for text in (text_of(message.content), *sent) if text)


def _sent(arguments: str) -> str:
    try:
        text = json.loads(arguments).get("message")
    except (ValueError, AttributeError):
        return ""
    return text if isinstance(text, str) else ""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """An event of a group run, and the agent that it comes from.

    `agent_id` and `agent_name` are empty for an event of the group run itself. `is_selection` is true while the manager
    of a dynamic group selects the next speaker.
    """

    event: runs_pb2.RunEvent
    agent_id: str = ""
    agent_name: str = ""
    is_selection: bool = False


@dataclass(frozen=True, slots=True)
class GroupReply:
    """A text that an agent of a group said to the user."""

    agent_id: str
    agent_name: str
    text: str
