"""A call of a built-in tool, as the tools of this folder take it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import AgentAuthor
from mnemesh_orchestrator.model.seen_revisions import SeenRevisions


@dataclass(frozen=True, slots=True)
class BuiltinCall:
    """A call of a built-in tool.

    `effect_prefix` is "{step_id}/{call ordinal}": the same after a restart, so
    that an effect which took place is not repeated but answered again.
    `time_zone` (IANA) is the agent's. `run_id` is None outside of a turn, and
    so is `sight`: what the agent has seen of its blocks, which the call's own
    edits advance. `conversation` is where it is called, if it is in one, and
    `heard` the user's last words there. `memory_scope` names the memories that
    the agent shares with others, beside its own.
    """

    name: str
    arguments: Mapping[str, Any]
    agent_id: str
    time_zone: str
    tool_call_id: str
    run_id: str | None
    effect_prefix: str
    conversation: Conversation | None = None
    sight: SeenRevisions | None = None
    heard: str = ""
    memory_scope: str | None = None

    @property
    def author(self) -> AgentAuthor:
        """On whose behalf memory is edited."""
        return AgentAuthor(self.agent_id, self.tool_call_id, self.run_id, self.holder_id)

    @property
    def holder_id(self) -> str | None:
        """The conversation, where it has blocks for itself."""
        return None if self.conversation is None else self.conversation.holder_id

    def is_isolated(self, label: str) -> bool:
        """Whether the conversation has the block under `label` for itself."""
        return self.conversation is not None and label in self.conversation.isolated_block_labels

    def base_revision(self, label: str) -> int | None:
        """The revision of a block that the agent has seen; None outside of a turn, where nothing is shown."""
        return None if self.sight is None else self.sight.of(label)

    def has_edited(self, label: str, revision: int, before: str | None = None) -> None:
        """Notes the revision that the call made of the block under `label`, which was called `before`."""
        if self.sight is not None:
            self.sight.edited(label, revision, before)

    def effect(self, ordinal: int) -> str:
        """The request id of the call's effect of that number."""
        return f"{self.effect_prefix}/{ordinal}"


class Refused(Exception):
    """The tool does not do it; the text tells the model why."""
