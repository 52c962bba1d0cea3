"""The messages of a new context window."""

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
"""For models that imitate their first message."""
_COPYING_MODELS = "gpt-3.5"
_BOOT_MESSAGE = "I am awake, and I remember."
_SENT = "Sent message successfully."
_SHORT_ID = 9
"""The length of a call id that every local model server accepts."""


class FirstMessageFactory:
    """Creates the messages of one new window. Their ids are derived from the window and their index."""

    def __init__(self, agent: Agent, conversation_id: str, epoch: str, now: datetime) -> None:
        """`epoch` distinguishes the windows that the conversation has had, such as before and after a reset."""
        self._agent = agent
        self._conversation_id = conversation_id
        self._key = (conversation_id, epoch)
        self._now = now
        self._messages: list[Message] = []
        self._speaks_by_tool = AGENT_TYPES[agent.type].policy == "v2"

    def system(self, text: str) -> Message:
        """Returns the system message, which is not one of the first messages."""
        return Message(
            id=derive_id("message", *self._key, "system"),
            role=Role.SYSTEM,
            created_at=self._now,
            content=(TextPart(text),),
            conversation_id=self._conversation_id,
        )

    def default(self) -> tuple[Message, ...]:
        """Returns the first messages of the agent's type. Models of LM Studio require that the user speaks first."""
        kind = AGENT_TYPES[self._agent.type].first_messages
        if kind is FirstMessages.NONE:
            return ()
        login = TextPart(login_event(self._now, self._agent.time_zone))
        thought = _BOOT_THOUGHT_IN_SHORT if _COPYING_MODELS in self._agent.model else _BOOT_THOUGHT
        if kind is FirstMessages.LOGIN:
            self._add(Role.USER, (login,), is_event=True)
        elif self._agent.model.startswith(("lmstudio/", "lmstudio_openai/")):
            self._add(Role.USER, (login,), is_event=True)
            self._speak(_BOOT_MESSAGE, thought, _SHORT_ID)
        else:
            self._speak(_BOOT_MESSAGE, thought)
            self._add(Role.USER, (login,), is_event=True)
        return tuple(self._messages)

    def from_inputs(self, messages: Sequence[InputMessage]) -> tuple[Message, ...]:
        """Returns the client's first messages. Those of the agent become calls if its type speaks with a tool."""
        for message in messages:
            text = "\n".join(part.text for part in message.content if isinstance(part, TextPart))
            if message.role is Role.ASSISTANT and self._speaks_by_tool:
                self._speak(text, None)
            else:
                self._add(message.role, message.content, source=message)
        return tuple(self._messages)

    def _speak(self, text: str, thought: str | None, id_length: int = 29) -> None:
        call_id = "call_" + derive_id("call", *self._key, str(len(self._messages))).removeprefix("call-").replace(
            "-", ""
        )
        call = ToolCall(call_id[:id_length], "send_message", json.dumps({"message": text}, ensure_ascii=False))
        self._add(Role.ASSISTANT, (ReasoningPart(thought),) if thought else (), calls=(call,))
        self._add(Role.TOOL, (), returns=(ToolReturn.from_text(call.id, call.name, ToolStatus.SUCCESS, _SENT),))

    def _add(
        self,
        role: Role,
        content: tuple[ContentPart, ...],
        calls: tuple[ToolCall, ...] = (),
        returns: tuple[ToolReturn, ...] = (),
        source: InputMessage | None = None,
        is_event: bool | None = None,
    ) -> None:
        self._messages.append(
            Message(
                id=derive_id("message", *self._key, str(len(self._messages))),
                role=role,
                created_at=self._now,
                content=content,
                tool_calls=calls,
                tool_returns=returns,
                name=source.name if source else None,
                otid=source.otid if source else None,
                sender_id=source.sender_id if source else None,
                group_id=source.group_id if source else None,
                is_event=is_event,
                conversation_id=self._conversation_id,
            )
        )
