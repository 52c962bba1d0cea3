"""What tests of Letta's API share: the SDK, the fake provider, and agents that are made in one call."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from letta_client import Letta
from letta_client.types import AgentState
from mnemesh_testkit.fakes.openai import FakeOpenAI

MODEL: Final = "openai/fake-model"


@dataclass
class Lab:
    """The SDK and the provider behind the gateway."""

    client: Letta
    fake: FakeOpenAI
    call: Callable[[str, str, Any], Any]
    """Calls a method of a service of the mesh: its full name, the method, the request."""
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine on the loop of the mesh."""

    def agent(self, **more: Any) -> AgentState:
        """Returns a new agent that speaks in plain text, with one block and without tools."""
        arguments: dict[str, Any] = {
            "model": MODEL,
            "memory_blocks": [{"label": "human", "value": "Ada."}],
            "include_base_tools": False,
        }
        return self.client.agents.create(**(arguments | more))


Driver = Callable[[Lab], None]
DRIVERS: dict[str, Driver] = {}
"""A method of the SDK, such as `agents.messages.create`, and the function that calls it and checks what it does."""


def drives(*methods: str) -> Callable[[Driver], Driver]:
    """Returns a decorator that registers a driver for methods of the SDK."""

    def register(driver: Driver) -> Driver:
        for method in methods:
            assert method not in DRIVERS, f"{method} has two drivers"
            DRIVERS[method] = driver
        return driver

    return register
