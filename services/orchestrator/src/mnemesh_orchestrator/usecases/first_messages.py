"""What a new window holds behind its system message."""

import json
from collections.abc import Sequence
from datetime import datetime

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import ContentPart, Message, ReasoningPart, Role, TextPart, ToolCall, ToolReturn, ToolStatus

from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, FirstMessages
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.prompt.packaging import login_event

_BOOT_THOUGHT = "My memory is loaded and my persona is in place. I check that my messages arrive."
_BOOT_THOUGHT_IN_SHORT = "Nobody has spoken yet. I say a word by calling the function."
"""For models that copy what they did first."""
_COPYING_MODELS = "gpt-3.5"
_BOOT_MESSAGE = "I am awake, and I remember."
_SENT = "Sent message successfully."
_SHORT_ID = 9
"""Characters of a call id that every local model server takes."""


class FirstWindow:
    """Makes the first messages of one window; their ids are derived from it and their place."""

    def __init__(self, agent: Agent, conversation_id: str, epoch: str, now: datetime) -> None:
        """`epoch` tells the windows that a conversation had apart, as by resets."""
        self._agent = agent
        self._conversation_id = conversation_id
        self._key = (conversation_id, epoch)
        self._now = now
        self._made: list[Message] = []
        self._speaks_by_tool = AGENT_TYPES[agent.type].policy == "v2"

    def system(self, text: str) -> Message:
        """The system message, which is not among the first messages."""
        return Message(
            id=derive_id("message", *self._key, "system"),
            role=Role.SYSTEM,
            created_at=self._now,
            content=(TextPart(text),),
            conversation_id=self._conversation_id,
        )

    def default(self) -> tuple[Message, ...]:
        """The first messages of the agent's type. LM Studio's models want the user to speak first."""
        kind = AGENT_TYPES[self._agent.type].first_messages
        if kind is FirstMessages.NONE:
            return ()
        login = TextPart(login_event(self._now, self._agent.time_zone))
        thought = _BOOT_THOUGHT_IN_SHORT if _COPYING_MODELS in self._agent.model else _BOOT_THOUGHT
        if kind is FirstMessages.LOGIN:
            self._add(Role.USER, (login,))
        elif self._agent.model.startswith(("lmstudio/", "lmstudio_openai/")):
            self._add(Role.USER, (login,))
            self._speak(_BOOT_MESSAGE, thought, _SHORT_ID)
        else:
            self._speak(_BOOT_MESSAGE, thought)
            self._add(Role.USER, (login,))
        return tuple(self._made)

    def given(self, messages: Sequence[InputMessage]) -> tuple[Message, ...]:
        """The client's own first messages; what the agent says is said the way that its type speaks."""
        for message in messages:
            text = "\n".join(part.text for part in message.content if isinstance(part, TextPart))
            if message.role is Role.ASSISTANT and self._speaks_by_tool:
                self._speak(text, None)
            else:
                self._add(message.role, message.content, said=message)
        return tuple(self._made)

    def _speak(self, text: str, thought: str | None, id_length: int = 29) -> None:
        call_id = "call_" + derive_id("call", *self._key, str(len(self._made))).removeprefix("call-").replace("-", "")
        call = ToolCall(call_id[:id_length], "send_message", json.dumps({"message": text}, ensure_ascii=False))
        self._add(Role.ASSISTANT, (ReasoningPart(thought),) if thought else (), calls=(call,))
        self._add(Role.TOOL, (), returns=(ToolReturn.from_text(call.id, call.name, ToolStatus.SUCCESS, _SENT),))

    def _add(
        self,
        role: Role,
        content: tuple[ContentPart, ...],
        calls: tuple[ToolCall, ...] = (),
        returns: tuple[ToolReturn, ...] = (),
        said: InputMessage | None = None,
    ) -> None:
        self._made.append(
            Message(
                id=derive_id("message", *self._key, str(len(self._made))),
                role=role,
                created_at=self._now,
                content=content,
                tool_calls=calls,
                tool_returns=returns,
                name=said.name if said else None,
                otid=said.otid if said else None,
                sender_id=said.sender_id if said else None,
                group_id=said.group_id if said else None,
                conversation_id=self._conversation_id,
            )
        )
