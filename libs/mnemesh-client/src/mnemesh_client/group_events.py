"""What agents of a group say and do in a run."""

from __future__ import annotations

from dataclasses import dataclass

from mnemesh.agents.v1 import runs_pb2


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """An event of a group run, and the agent that it comes from.

    `agent_id` and `agent_name` are empty for an event of the group run itself. `is_selection` is true while the manager
    of a dynamic group selects the next speaker.
    """

    event: runs_pb2.RunEvent
    agent_id: str = ""
    agent_name: str = ""
    is_selection: bool = False


@dataclass(frozen=True, slots=True)
class GroupReply:
    """A text that an agent of a group said to the user."""

    agent_id: str
    agent_name: str
    text: str
