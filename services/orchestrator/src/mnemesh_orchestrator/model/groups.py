"""Groups of agents, their managers, and the rules of their fields."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mnemesh_kit.ids import derive_id
from mnemesh_types.provenance import Provenance


class ManagerType(StrEnum):
    """The kind of manager of a group."""

    ROUND_ROBIN = "round_robin"
    SUPERVISOR = "supervisor"
    DYNAMIC = "dynamic"
    SLEEPTIME = "sleeptime"
    VOICE_SLEEPTIME = "voice_sleeptime"
    SWARM = "swarm"


BACKGROUND_TYPES = frozenset({ManagerType.SLEEPTIME, ManagerType.VOICE_SLEEPTIME})
"""The kinds of groups whose members work in the background of the manager."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """The manager of a group. Only the fields of its type are set; None takes the default."""

    type: ManagerType = ManagerType.ROUND_ROBIN
    manager_agent_id: str | None = None
    max_turns: int | None = None
    """Round robin and dynamic: turns per run; None is one per member."""
    termination_token: str | None = None
    """Dynamic: the words that end the run; None is "DONE!"."""
    frequency: int | None = None
    """Sleeptime: the members run after every n-th turn; None is every turn."""
    interval_seconds: float | None = None
    inactivity_seconds: float | None = None
    max_steps: int | None = None
    """Sleeptime and voice sleeptime: the limit on the steps of a member's run; None is 50."""
    max_message_buffer_length: int | None = None
    min_message_buffer_length: int | None = None


def manager_field(config: ManagerConfig) -> str:
    """Returns the path of the manager's id in a Group of the contract, for errors."""
    return f"group.manager_config.{config.type}.manager_agent_id"


class GroupState(StrEnum):
    """The state of a group. CREATING groups are invisible; an UPDATING one is shown as it was before."""

    CREATING = "creating"
    ACTIVE = "active"
    UPDATING = "updating"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class SharedAttachment:
    """A shared block that a group attached to one of its agents. The agent did not hold the block before."""

    agent_id: str
    block_id: str


def group_conversation_id(group_id: str) -> str:
    """Returns the id of the queue of a group's runs."""
    return derive_id("conv", group_id)


@dataclass(frozen=True, slots=True)
class Group:
    """Agents that answer together, or that work in the background of one of them."""

    id: str
    organization_id: str
    created_at: datetime
    updated_at: datetime
    description: str = ""
    agent_ids: tuple[str, ...] = ()
    """The members in order, without the manager."""
    manager: ManagerConfig = ManagerConfig()
    shared_block_ids: tuple[str, ...] = ()
    attachments: tuple[SharedAttachment, ...] = ()
    """The attachments that end when the agent leaves or the group is deleted."""
    hidden: bool = False
    metadata: str | None = None
    provenance: Provenance = field(default_factory=Provenance)
    turns_counter: int = 0
    """Sleeptime: the count with which the group began, and one for each completed turn of the manager."""
    last_processed_message_id: str | None = None
    last_sleeptime_at: datetime | None = None
    revision: int = 1

    @property
    def conversation_id(self) -> str:
        """The id of the queue of the group's runs."""
        return group_conversation_id(self.id)

    @property
    def all_agent_ids(self) -> tuple[str, ...]:
        """The members and the manager."""
        manager = self.manager.manager_agent_id
        return self.agent_ids if manager is None else (*self.agent_ids, manager)


@dataclass(frozen=True, slots=True)
class Speaker:
    """An agent of a group run, as it was when the run started."""

    agent_id: str
    name: str
    description: str = ""


class TurnOutcome(StrEnum):
    """The outcome of the turn of an agent in a group run."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class MemberTurn:
    """A turn of a group run that has ended. The turns of a run are numbered from 1, the manager's included."""

    number: int
    agent_id: str
    outcome: TurnOutcome = TurnOutcome.COMPLETED
    words: tuple[str, ...] = ()
    """The texts that the agent said to the user, in order."""
    is_selection: bool = False
    """The manager selected the next speaker."""
    has_received: bool = True
    """The agent's window has the input of the turn."""

    @property
    def completed(self) -> bool:
        """True if the turn completed."""
        return self.outcome is TurnOutcome.COMPLETED


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The settings of a group run. They are stored with the run and do not change while it runs."""

    group_id: str
    manager: ManagerConfig
    members: tuple[Speaker, ...]
    manager_name: str | None = None
    completed: tuple[MemberTurn, ...] = ()
    """The turns that earlier attempts at the same input completed. They are not repeated."""


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """The conditions of a list or a count; a group must meet all that are set."""

    group_ids: tuple[str, ...] = ()
    manager_types: Sequence[ManagerType] = ()
    agent_id: str | None = None
    """A member or the manager."""
    hidden: bool | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None


class GroupOrder(StrEnum):
    """The keys that lists of groups can be sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
