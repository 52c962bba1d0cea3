"""The scenarios of a benchmark."""

from dataclasses import dataclass, replace
from typing import Final, Literal

Script = Literal["one-step", "five-tools"]

TURNS_BETWEEN_TRIMS: Final[dict[Script, int]] = {"one-step": 10, "five-tools": 2}
"""A one-step turn adds two messages to the window (three with send_message), a five-tools turn twelve. The window is
restored after this number of turns, so that its size stays close to the scenario's."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Turns of one kind."""

    script: Script
    agents: int
    stored: int
    """Number of messages of each agent in recall at the start."""
    window: int
    """Number of messages in the window at the start, including the system message."""
    turns: int
    """Number of turns of each agent."""
    policy: Literal["v2", "v3"] = "v3"
    streamed: bool = False
    """Streams tokens as they arrive, in addition to the complete messages."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The scenarios and counts of a benchmark."""

    scenarios: tuple[Scenario, ...]
    counted_turns: int
    """Number of turns of each script for counting calls and transactions."""
    warm_up_turns: int

    def only(self, script: str) -> "Plan":
        """Returns the plan with the scenarios of one script."""
        return replace(self, scenarios=tuple(one for one in self.scenarios if one.script == script))


def full() -> Plan:
    """Returns the plan of `make bench`: about five minutes on two cores."""
    alone_turns: dict[Script, int] = {"one-step": 100, "five-tools": 30}
    together_turns: dict[Script, int] = {"one-step": 30, "five-tools": 8}
    alone = [
        Scenario(script, 1, stored, window, turns)
        for script, turns in alone_turns.items()
        for stored, window in ((10, 10), (1_000, 20), (10_000, 20), (1_000, 100), (10_000, 100))
    ]
    together = [
        Scenario(script, 16, stored, window, turns)
        for script, turns in together_turns.items()
        for stored, window in ((10, 10), (1_000, 20), (1_000, 100))
    ]
    others = [
        Scenario("one-step", 1, 1_000, 20, 100, streamed=True),
        Scenario("one-step", 1, 1_000, 20, 100, policy="v2"),
        Scenario("five-tools", 1, 1_000, 20, 30, policy="v2"),
    ]
    return Plan((*alone, *others, *together), counted_turns=20, warm_up_turns=10)


def quick() -> Plan:
    """Returns a plan with every kind of scenario once, as a smoke test."""
    return Plan(
        (
            Scenario("one-step", 1, 30, 10, 2, streamed=True),
            Scenario("five-tools", 1, 10, 10, 1, policy="v2"),
            Scenario("one-step", 2, 10, 10, 2),
        ),
        counted_turns=1,
        warm_up_turns=1,
    )
