"""The release of the Letta server whose behaviour is served where releases differ."""

from __future__ import annotations

from enum import StrEnum


class Profile(StrEnum):
    """A release. The newest is the default."""

    LETTA_0_16_1 = "0.16.1"
    LETTA_0_16_7 = "0.16.7"

    @property
    def agent_type(self) -> str:
        """The type of agents that are created without one. Those of 0.16.1 speak with send_message."""
        return "memgpt_v2_agent" if self is Profile.LETTA_0_16_1 else "letta_v1_agent"

    @property
    def block_limit(self) -> int:
        """The limit of blocks that are created without one, in characters."""
        return 20_000 if self is Profile.LETTA_0_16_1 else 100_000

    @property
    def announces_runs(self) -> bool:
        """True if the stream of a run begins with a ping that has the id of the run. 0.16.1 sends no such ping."""
        return self is Profile.LETTA_0_16_7
