"""The contents of the measured stores, and their ids."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from mnemesh_kit.ids import derive_id

BEGAN: Final = datetime(2025, 1, 1, tzinfo=UTC)
TAGS: Final = tuple(f"tag{number}" for number in range(20))


@dataclass(frozen=True, slots=True)
class Dataset:
    """The amount of data, divided equally among agents and archives."""

    messages: int
    agents: int
    passages: int
    archives: int

    @property
    def messages_per_agent(self) -> int:
        """The number of messages of an agent."""
        return self.messages // self.agents

    @property
    def passages_per_archive(self) -> int:
        """The number of passages of an archive."""
        return self.passages // self.archives

    def scaled(self, messages: int) -> "Dataset":
        """Returns a smaller dataset: fewer agents and archives of the same size."""
        share = messages / self.messages
        return Dataset(
            messages,
            max(1, round(self.agents * share)),
            max(1, round(self.passages * share)),
            max(1, round(self.archives * share)),
        )


def agent_of(number: int) -> str:
    """Returns the id of an agent."""
    return derive_id("agent", "bench-memory", str(number))


def conversation_of(agent: int, number: int | str = 0) -> str:
    """Returns the id of a conversation of an agent. The loaded messages belong to conversation 0."""
    return derive_id("conv", "bench-memory", str(agent), str(number))


def message_of(agent: int, position: int | str) -> str:
    """Returns the id of a message by its position in the agent's history."""
    return derive_id("message", "bench-memory", str(agent), str(position))


def archive_name(number: int) -> str:
    """Returns the name of an archive, by which its id is found again."""
    return f"bench-memory {number}"


def said_at(position: int) -> datetime:
    """Returns the time of a message: sessions of forty messages, two a day."""
    session, minute = divmod(position, 40)
    return BEGAN + timedelta(hours=12 * session, minutes=minute)


def written_at(position: int) -> datetime:
    """Returns the time of a passage."""
    return BEGAN + timedelta(hours=6 * position)


def tags_of(position: int) -> tuple[str, str]:
    """Returns two of the tags."""
    return TAGS[position % len(TAGS)], TAGS[(position // len(TAGS)) % len(TAGS)]
