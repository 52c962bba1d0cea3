"""The rows that `make bench` measures, and the number of repetitions."""

from dataclasses import dataclass, replace
from typing import Final, Literal

Script = Literal["one-step", "five-tools"]
Api = Literal["gRPC", "REST"]
Figure = Literal["whole", "first", "rate"]

APIS: Final[tuple[Api, ...]] = ("gRPC", "REST")


@dataclass(frozen=True, slots=True)
class Row:
    """Turns of one kind, or creations of agents (`script` None)."""

    name: str
    script: Script | None
    figure: Figure
    """The figure in the table: milliseconds to the end, milliseconds to the first words, or operations per second."""
    count: int
    """The number of operations of each agent in a block."""
    policy: Literal["v1", "v2"] = "v1"
    """V1 answers in plain text (`letta_v1_agent`), V2 with send_message (`memgpt_v2_agent`)."""
    agents: int = 1
    stored: int = 1_000
    window: int = 20
    streamed: bool = False
    """Streams tokens as they arrive."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows, and the repetitions."""

    rows: tuple[Row, ...]
    blocks: int
    """How often a row is measured. The blocks of two versions and of both APIs alternate."""
    idle_seconds: float
    """The time for which the mesh at rest is measured."""

    def only(self, text: str) -> "Plan":
        """Returns the plan with the rows that have a text in their names."""
        return replace(self, rows=tuple(row for row in self.rows if text in row.name))


def full() -> Plan:
    """Returns the plan of `make bench`: about three minutes for an engine and a version, on two cores."""
    return Plan(
        (
            Row("one message V1", "one-step", "whole", 10),
            Row("one message V2", "one-step", "whole", 10, policy="v2"),
            Row("one message V1, 10,000 stored", "one-step", "whole", 10, stored=10_000),
            Row("one message V1, window of 100", "one-step", "whole", 10, window=100),
            Row("16 agents at once", "one-step", "rate", 10, agents=16),
            Row("chain of 5 tools V1", "five-tools", "whole", 2),
            Row("chain of 5 tools V2", "five-tools", "whole", 2, policy="v2"),
            Row("first chunk V1, tokens streamed", "one-step", "first", 10, streamed=True),
            Row("create agent V1", None, "whole", 5),
        ),
        blocks=10,
        idle_seconds=20.0,
    )


def quick() -> Plan:
    """Returns a plan with every kind of row once, as a smoke test."""
    return Plan(
        (
            Row("one message V1", "one-step", "whole", 2, stored=10, window=10),
            Row("2 agents at once", "one-step", "rate", 2, agents=2, stored=10, window=10),
            Row("chain of 5 tools V2", "five-tools", "whole", 1, policy="v2", stored=10, window=10),
            Row("first chunk V1, tokens streamed", "one-step", "first", 2, streamed=True, stored=10, window=10),
            Row("create agent V1", None, "whole", 1),
        ),
        blocks=1,
        idle_seconds=1.0,
    )
