"""The messages of an agent that no extraction has processed, by conversation and by the scope of their facts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.compaction.extraction import rendered_length
from mnemesh_orchestrator.compaction.fact_extraction import Passage
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.episodes import MemoryScope
from mnemesh_orchestrator.model.memory_access import memory_access
from mnemesh_orchestrator.model.message_lists import MessageQuery
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.prompt.packaging import senders_of

_PAGE: Final = 100
_CHARACTERS: Final = 24_000
_EARLIER: Final = 6
_SPOKEN: Final = frozenset({Role.USER, Role.ASSISTANT, Role.TOOL})


@dataclass(frozen=True, slots=True)
class Passages:
    """The next messages: those with something to extract, the number of all, and the newest sequence id."""

    passages: tuple[Passage, ...]
    message_count: int
    until: int


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads messages in the order of their sequence ids."""

    recall: RecallPort

    async def next_passages(self, agent: Agent, processed: int) -> Passages | None:
        """Returns the messages after a sequence id, as many as a model can read at once; None if there are none."""
        query = MessageQuery(page_size=_PAGE, agent_ids=(agent.id,), after_sequence_id=processed)
        page = (await self.recall.list_messages(query)).messages
        if not page:
            return None
        taken = page[: _end(page)]
        spoken = [message for message in taken if message.role in _SPOKEN and not message.is_err]
        passages: list[Passage] = []
        for conversation_id, messages in _by_conversation(spoken):
            earlier = await self._earlier(agent, conversation_id, messages[0])
            passages += _passages(agent, conversation_id, messages, earlier)
        return Passages(tuple(passages), len(taken), taken[-1].sequence_id)

    async def _earlier(self, agent: Agent, conversation_id: str | None, first: Message) -> tuple[Message, ...]:
        """Returns the last messages of the conversation before one."""
        query = MessageQuery(
            page_size=_EARLIER * 4,
            ascending=False,
            agent_ids=(agent.id,),
            roles=(Role.USER, Role.ASSISTANT),
            until_sequence_id=first.sequence_id - 1,
        )
        if first.sequence_id <= 1:
            return ()
        found = (await self.recall.list_messages(query)).messages
        own = [message for message in found if message.conversation_id == conversation_id][:_EARLIER]
        return tuple(reversed(own))


def _end(messages: Sequence[Message]) -> int:
    """Returns the number of messages that fit, up to the end of a turn if one ends among them."""
    size, end = 0, 0
    for message in messages:
        size += rendered_length((message,))
        if size > _CHARACTERS and end:
            break
        end += 1
    if end == len(messages) and end < _PAGE:
        return end
    starts = [index for index, message in enumerate(messages[: end + 1]) if index and _starts_turn(message)]
    return starts[-1] if starts else end


def _starts_turn(message: Message) -> bool:
    return message.is_from_user


def _by_conversation(messages: Iterable[Message]) -> list[tuple[str | None, list[Message]]]:
    """Returns the messages by conversation. Those without one, such as imported ones, form one dialogue."""
    found: dict[str | None, list[Message]] = {}
    for message in messages:
        found.setdefault(message.conversation_id, []).append(message)
    return list(found.items())


def _passages(
    agent: Agent, conversation_id: str | None, messages: Sequence[Message], earlier: tuple[Message, ...]
) -> list[Passage]:
    """Returns the messages of a conversation by scope. Those before the first user message have the sender before."""
    turns: list[list[Message]] = [[]]
    for message in messages:
        if _starts_turn(message) and any(_starts_turn(other) for other in turns[-1]):
            turns.append([])
        turns[-1].append(message)
    before = senders_of(earlier)[-1:]
    scoped: list[tuple[MemoryScope, list[Message]]] = []
    for turn in turns:
        before = senders_of(message for message in turn if _starts_turn(message)) or before
        access = memory_access(
            agent.id, agent.memory_scope, agent.memory_extraction, conversation_id=conversation_id, senders=before
        )
        scoped.append((access.stored, turn))
    passages: list[Passage] = []
    for scope, group in groupby(scoped, key=lambda item: item[0]):
        own = tuple(message for _, turn in group for message in turn)
        # What another sender said before must not become a fact of this one.
        is_others = not set(senders_of(earlier)) <= set(senders_of(own))
        if any(_starts_turn(message) and message.text.strip() for message in own):
            passages.append(Passage(scope, conversation_id, own, () if is_others else earlier))
        earlier = own[-_EARLIER:]
    return passages
