"""Tells the orchestrator which agents hold folders, so that an agent without any costs its turns nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, NotFound, Unavailable
from mnemesh_kit.ids import derive_id
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_files.model.agent_files import Announcement
from mnemesh_files.ports.agents import AgentsPort
from mnemesh_files.store.base.agent_files import AnnouncementStore

RETRY_SECONDS: Final = 2.0
BATCH: Final = 100
_WAIT_SECONDS: Final = 2.0
"""How long a change of folders waits until the orchestrator knows it."""
_SUBJECT: Final = derive_id("user", "files")

_log = structlog.get_logger("mnemesh.files")


class Announcer:
    """Tells the orchestrator once per change between holding folders and holding none.

    What is to be told is stored with the change, so that it survives an outage and a crash.
    """

    def __init__(self, store: AnnouncementStore, agents: AgentsPort, clock: Clock) -> None:
        self._store = store
        self._agents = agents
        self._clock = clock
        self._is_away = False

    async def announce(self, organization_id: str, agent_id: str) -> None:
        """Tells the orchestrator about an agent if there is news, so that the agent's next turn knows its folders.

        If the orchestrator does not answer, `announce_due` tells it later; then further calls do not wait.
        """
        announcement = await self._store.announcement(organization_id, agent_id)
        if announcement is None or self._is_away:
            return
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._tell(announcement)
        except TimeoutError:
            self._is_away = True

    async def announce_due(self) -> None:
        """Tells the orchestrator all that is due. If it does not answer, all of it stays due."""
        for announcement in await self._store.due_announcements(BATCH):
            await self._tell(announcement)
            if self._is_away:
                return

    async def _tell(self, announcement: Announcement) -> None:
        try:
            with as_principal(Principal(announcement.organization_id, _SUBJECT)):
                await self._agents.record_folders(
                    announcement.agent_id, announcement.revision, holds_folders=announcement.holds_folders
                )
        except NotFound:
            _log.info("announcement_dropped", agent_id=announcement.agent_id)
        except (Unavailable, DeadlineExceeded) as error:
            self._is_away = True
            _log.info("announcement_failed", agent_id=announcement.agent_id, error=error.message)
            return
        except MnemeshError as error:
            # The agent is being created, for example.
            _log.info("announcement_postponed", agent_id=announcement.agent_id, error=error.message)
            await self._store.announced(announcement, at=self._clock.now() + timedelta(seconds=RETRY_SECONDS))
            return
        self._is_away = False
        await self._store.announced(announcement, at=None)
