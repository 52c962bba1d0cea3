"""The records of agents in the other services, as exports read and imports write them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from mnemesh_types.messages import Message

from mnemesh_orchestrator.model.transfers import ExportScope, ImportTarget, Outcome, Record, RecordType


class RecordPart(Protocol):
    """The records of some types in one service."""

    @property
    def types(self) -> tuple[RecordType, ...]:
        """The types."""
        ...

    def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        """Yields the records of a type of an agent, oldest first."""
        ...

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:
        """Returns the ids of things that exist already, by the ids of the records of one shared type."""
        ...

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
        """Stores a batch of records of one type, and attaches shared things to the agent.

        Args:
            request_id: the idempotency key of the batch.
            target: the agent.
            records: the records, in the order of the stream.
            existing: what `find` returned, without what this import creates.

        Raises:
            MnemeshError: Metadata: record (the index in the stream) if one record is the cause.
        """
        ...


class ImportedWindows(Protocol):
    """The context windows of imported agents."""

    async def is_free(self, agent_id: str) -> bool:
        """Returns whether recall has no agent with this id, of any organization, erased or not."""
        ...

    async def restore(
        self, request_id: str, agent_id: str, conversation_id: str, message_ids: Sequence[str], system: Message
    ) -> int:
        """Creates the window of a conversation over stored messages of the agent.

        Args:
            request_id: the idempotency key. If the window exists, nothing changes.
            agent_id: the agent.
            conversation_id: the conversation.
            message_ids: the messages, in order. If the first is not of the role SYSTEM, `system` precedes it.
            system: the system message of a window that has none.

        Returns:
            The number of messages that are not stored, which are left out.
        """
        ...


RecordParts = Mapping[RecordType, RecordPart]
