"""Ids and requests of tests of bad input."""

from typing import Any

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.ids import derive_id

AGENT = derive_id("agent", "a test")
RUN = derive_id("run", "a test")
STEP = derive_id("step", "a test")
CONVERSATION = derive_id("conv", AGENT)


def creating(*, agent: dict[str, Any] | None = None, **fields: Any) -> agents_service_pb2.CreateAgentRequest:
    return agents_service_pb2.CreateAgentRequest(agent=agents_pb2.Agent(**(agent or {})), **fields)


def said(**fields: Any) -> runs_pb2.InputMessage:
    fields.setdefault("content", [message_pb2.ContentPart(text=message_pb2.TextPart(text="Hello"))])
    return runs_pb2.InputMessage(**fields)


def configured(**config: Any) -> runs_service_pb2.SendMessageRequest:
    return sending(config=runs_pb2.RunConfig(**config))


def sending(*messages: Any, agent_id: str = AGENT, **fields: Any) -> runs_service_pb2.SendMessageRequest:
    return runs_service_pb2.SendMessageRequest(agent_id=agent_id, messages=messages or [said()], **fields)
