"""A call of a built-in tool."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mnemesh_types.messages import ImagePart

from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import AgentAuthor, MemoryAccess, SeenRevisions
from mnemesh_orchestrator.model.events import MemberEvent
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.ports.child_runs import ShowApproval

T = TypeVar("T")


async def _show_to_no_one(_event: MemberEvent) -> None:
    """Outside of a turn, no call waits for other agents."""


@dataclass(frozen=True, slots=True)
class BuiltinCall:
    """A call of a built-in tool.

    `effect_prefix` is "{step_id}/{call ordinal}". It is the same after a restart, so that an effect is not repeated and
    its first result is returned again. `time_zone` (IANA) is the agent's. `run` and `seen_revisions` are None outside
    of a turn. `seen_revisions` holds the revisions of blocks that the agent has seen, its own edits included.
    `conversation` is the conversation of the call, if any, and `last_user_text` the last user message in it.
    `memory` has the scopes of the agent's memories that the call may read and change.
    """

    name: str
    arguments: Mapping[str, Any]
    agent_id: str
    time_zone: str
    tool_call_id: str
    run: Run | None
    effect_prefix: str
    conversation: Conversation | None = None
    seen_revisions: SeenRevisions | None = None
    last_user_text: str = ""
    memory: MemoryAccess | None = None
    user_message_ids: tuple[str, ...] = ()
    """The messages of users in the input of the turn."""
    agent_name: str = ""
    shows_opened_files: bool = False
    """Whether the result of opening files contains their text, because the prompt does not change within the turn."""
    embedder: str | None = None
    """The embedder of an archive that the call creates; None is the default of archival."""
    show_approval: ShowApproval = _show_to_no_one
    """Shows the followers of the run the approvals of agents whose replies the call waits for."""

    @property
    def run_id(self) -> str | None:
        """The id of the run that makes the call; None outside of a turn."""
        return None if self.run is None else self.run.id

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation of the call, if any."""
        if self.conversation is not None:
            return self.conversation.id
        return None if self.run is None else self.run.conversation_id

    @property
    def author(self) -> AgentAuthor:
        """The author of edits to core memory."""
        return AgentAuthor(self.agent_id, self.tool_call_id, self.run_id, self.holder_id)

    @property
    def holder_id(self) -> str | None:
        """The id of the conversation if it has isolated blocks, otherwise None."""
        return None if self.conversation is None else self.conversation.holder_id

    def is_isolated(self, label: str) -> bool:
        """Returns whether the conversation has its own copy of the block under `label`."""
        return self.conversation is not None and label in self.conversation.isolated_block_labels

    def base_revision(self, label: str) -> int | None:
        """Returns the revision of a block that the agent has seen; None outside of a turn, where no prompt shows it."""
        return None if self.seen_revisions is None else self.seen_revisions.of(label)

    def record_edit(self, label: str, revision: int, before: str | None = None) -> None:
        """Records the revision that the call created of the block under `label`, which was called `before`."""
        if self.seen_revisions is not None:
            self.seen_revisions.record_edit(label, revision, before)

    def effect(self, ordinal: int) -> str:
        """Returns the request id of the call's effect with this number."""
        return f"{self.effect_prefix}/{ordinal}"


@dataclass(frozen=True, slots=True)
class WithImages:
    """The result of a tool that shows images besides its text."""

    text: str
    images: tuple[ImagePart, ...]


class OptionalCalls(Protocol):
    """Calls services without which a turn continues; see OptionalServices."""

    async def call(self, call: Callable[[], Awaitable[T]], what: str) -> tuple[T | None, str]:
        """Returns the result, or None and a note for the model if the service is unavailable."""
        ...


class Refused(Exception):
    """The tool refuses the call. The text tells the model why."""
