"""A call of a built-in tool, as the tools of this folder take it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engram_orchestrator.ports import AgentAuthor


@dataclass(frozen=True, slots=True)
class BuiltinCall:
    """A call of a built-in tool.

    `effect_prefix` is "{step_id}/{call ordinal}": the same after a restart, so
    that an effect which took place is not repeated but answered again.
    `time_zone` (IANA) is the agent's. `run_id` is None outside of a turn.
    """

    name: str
    arguments: Mapping[str, Any]
    agent_id: str
    time_zone: str
    tool_call_id: str
    run_id: str | None
    effect_prefix: str

    @property
    def author(self) -> AgentAuthor:
        """On whose behalf memory is edited."""
        return AgentAuthor(self.agent_id, self.tool_call_id, self.run_id)

    def effect(self, ordinal: int) -> str:
        """The request id of the call's effect of that number."""
        return f"{self.effect_prefix}/{ordinal}"


class Refused(Exception):
    """The tool does not do it; the text tells the model why."""
