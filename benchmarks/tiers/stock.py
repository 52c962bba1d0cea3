"""What is in the stores under measurement, and which ids it has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from mnemesh_kit.ids import derive_id

BEGAN: Final = datetime(2025, 1, 1, tzinfo=UTC)
TAGS: Final = tuple(f"tag{number}" for number in range(20))


@dataclass(frozen=True, slots=True)
class Stock:
    """How much there is; each agent and each archive has an equal part."""

    messages: int
    agents: int
    passages: int
    archives: int

    @property
    def each_agent(self) -> int:
        """Messages of an agent."""
        return self.messages // self.agents

    @property
    def each_archive(self) -> int:
        """Passages of an archive."""
        return self.passages // self.archives

    def scaled(self, messages: int) -> Stock:
        """A smaller one of the same make: fewer agents and archives of the same size."""
        share = messages / self.messages
        return Stock(
            messages,
            max(1, round(self.agents * share)),
            max(1, round(self.passages * share)),
            max(1, round(self.archives * share)),
        )


def agent_of(number: int) -> str:
    """An agent."""
    return derive_id("agent", "tiers", str(number))


def conversation_of(agent: int, number: int | str = 0) -> str:
    """A conversation of an agent; what was loaded is of the first."""
    return derive_id("conv", "tiers", str(agent), str(number))


def message_of(agent: int, place: int | str) -> str:
    """A message by its place in its agent's history."""
    return derive_id("message", "tiers", str(agent), str(place))


def archive_name(number: int) -> str:
    """The name of an archive, by which its id is found again."""
    return f"tiers {number}"


def said_at(place: int) -> datetime:
    """When a message of a place was said: sessions of forty messages, two a day."""
    session, minute = divmod(place, 40)
    return BEGAN + timedelta(hours=12 * session, minutes=minute)


def written_at(place: int) -> datetime:
    """When a passage of a place was written."""
    return BEGAN + timedelta(hours=6 * place)


def tags_of(place: int) -> tuple[str, str]:
    """Two of the tags."""
    return TAGS[place % len(TAGS)], TAGS[(place // len(TAGS)) % len(TAGS)]
