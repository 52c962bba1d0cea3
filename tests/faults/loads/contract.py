"""The protocol of a load, which runs while a test kills processes, and the functions that all loads call."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh, text_of
from mnemesh_kit.errors import DeadlineExceeded, Unavailable
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.turns import texts

T = TypeVar("T")
MODEL = "openai/fake-model"
ASK = "send_message_to_agent_and_wait_for_reply"


class Load(Protocol):
    """Runs that a test starts while it kills processes."""

    async def prepare(self, client: Mnemesh) -> None:
        """Creates agents and groups."""
        ...

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """Returns the answer of the agent with a name; None if it is another load's."""
        ...

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """Starts runs one after another, and waits for each."""
        ...

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """Counts what recall has."""
        ...


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of a call that is repeated while the service is away. The call must be repeatable."""
    while True:
        try:
            return await call()
        except (Unavailable, DeadlineExceeded):
            await asyncio.sleep(0.05)


async def finished(client: Mnemesh, start: Callable[[str], Awaitable[runs_pb2.Run]]) -> runs_pb2.Run:
    """Starts a run under one request id, and waits for its end."""
    request_id = new_id("request").partition("-")[2]
    run = await persist(lambda: start(request_id))
    return await persist(lambda: client.runs.wait(run.id))


async def everything(agent: Agent) -> list[message_pb2.Message]:
    """Returns every message of an agent in recall, system messages included."""
    return [message async for message in agent.messages()]


def words(messages: list[message_pb2.Message], role: "message_pb2.Role.ValueType", pattern: str) -> Counter[str]:
    """Returns how often a pattern occurs in the messages of a role."""
    return Counter(
        found for message in messages if message.role == role for found in re.findall(pattern, text_of(message.content))
    )


def once(*expected: str) -> Counter[str]:
    return Counter(dict.fromkeys(expected, 1))


def last_round(body: dict[str, Any]) -> str:
    """Returns the number of the last round that a request names."""
    found: list[str] = re.findall(r"Round ([0-9]+)", "\n".join(texts(body)))
    return found[-1]
