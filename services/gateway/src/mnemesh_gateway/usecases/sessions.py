"""Sessions: a conversation of the agent, with a block that shows the client's instructions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.time import Clock

from mnemesh_gateway.clients.agents import ConversationsClient, OverlaysClient
from mnemesh_gateway.model.models import AgentInfo
from mnemesh_gateway.model.sessions import Overlay, SessionKey, overlay_of
from mnemesh_gateway.usecases.agents import Cache

CAPACITY: Final = 100
SECONDS: Final = 3 * 3600.0
_DELIVERED: Final = 32

_log = structlog.get_logger("mnemesh.sessions")


@dataclass(slots=True)
class Session:
    """A session that this process knows. The mesh stores all of it but `delivered`, which is optional."""

    name: str
    agent_id: str
    conversation_id: str
    block_id: str | None = None
    sha256: str | None = None
    """The hash of the instructions in the block."""
    fallback: Overlay | None = None
    """Instructions that could not be written to the block, and that a message shows instead."""
    has_preface: bool = False
    """The message with the fallback was sent."""
    delivered: deque[str] = field(default_factory=lambda: deque(maxlen=_DELIVERED))
    """The runs whose answers reached their clients completely, newest last."""

    def fall_back(self, overlay: Overlay | None) -> None:
        """Shows instructions in a message, once for each text; None if the block shows them."""
        self.has_preface = self.has_preface and self.fallback == overlay
        self.fallback = overlay


class SessionService:
    """Finds the session of a request, and keeps its overlay current."""

    def __init__(self, conversations: ConversationsClient, overlays: OverlaysClient, clock: Clock) -> None:
        self._conversations = conversations
        self._overlays = overlays
        self._cache: Cache[tuple[str, str, str], Session] = Cache(CAPACITY, SECONDS, clock)

    async def open(self, caller: Principal, agent: AgentInfo, name: str | None, instructions: str | None) -> Session:
        """Returns the session of a request, whose overlay shows the instructions.

        Args:
            caller: The caller.
            agent: The agent.
            name: The name of the session. None is the agent's default conversation, if there are no instructions.
            instructions: The client's instructions; None leaves the overlay as it is.

        Raises:
            NotFound: The agent does not exist.
        """
        if name is None:
            return self._default(caller, agent)
        key = SessionKey(agent.id, name)
        session = await self._find(caller, key)
        if instructions is None:
            return session
        try:
            return await self._show(agent, key, session, overlay_of(instructions))
        except NotFound:
            # The conversation was deleted since this process found it.
            self._cache.remove(_cache_key(caller, key.agent_id, key.name))
            session = await self._find(caller, key)
            return await self._show(agent, key, session, overlay_of(instructions))

    async def continued(
        self, caller: Principal, agent: AgentInfo, conversation_id: str, instructions: str | None
    ) -> Session:
        """Returns the session of an existing conversation. Without an overlay block, a message has the instructions.

        Raises:
            NotFound: The conversation does not exist, or is one of another agent.
        """
        key = SessionKey(agent.id, f"conversation/{conversation_id}")
        cache_key = _cache_key(caller, agent.id, key.name)
        session = self._cache.get(cache_key)
        if session is None:
            agent_id, block_id = await self._conversations.find(conversation_id)
            if agent_id != agent.id:
                raise NotFound(f"The agent has no conversation {conversation_id}.", resource_id=conversation_id)
            session = Session(key.name, agent.id, conversation_id, block_id)
            self._cache.put(cache_key, session)
        if instructions is None:
            return session
        if session.block_id is None:
            session.fall_back(overlay_of(instructions))
            return session
        return await self._show(agent, key, session, overlay_of(instructions))

    def forget(self, caller: Principal, session: Session) -> None:
        """Forgets a session whose conversation does not exist any more."""
        self._cache.remove(_cache_key(caller, session.agent_id, session.name))

    def known(self, caller: Principal) -> Iterator[dict[str, Any]]:
        """Yields the sessions of the caller's organization that this process knows, for /debug/sessions."""
        for (organization_id, agent_id, name), session, seconds in self._cache.items():
            if organization_id == caller.organization_id:
                yield {
                    "session": name,
                    "agent_id": agent_id,
                    "conversation_id": session.conversation_id,
                    "overlay_block_id": session.block_id,
                    "system_sha256": session.sha256,
                    "fallback_used": session.fallback is not None,
                    "expires_in_seconds": round(seconds),
                }

    def _default(self, caller: Principal, agent: AgentInfo) -> Session:
        cache_key = _cache_key(caller, agent.id, "default")
        session = self._cache.get(cache_key)
        if session is None:
            session = Session("default", agent.id, agent.default_conversation_id)
            self._cache.put(cache_key, session)
        return session

    async def _find(self, caller: Principal, key: SessionKey) -> Session:
        cache_key = _cache_key(caller, key.agent_id, key.name)
        session = self._cache.get(cache_key)
        if session is None:
            conversation_id, block_id = await self._conversations.open(key.agent_id, key.name)
            session = Session(key.name, key.agent_id, conversation_id, block_id)
            self._cache.put(cache_key, session)
        return session

    async def _show(self, agent: AgentInfo, key: SessionKey, session: Session, overlay: Overlay) -> Session:
        """Writes the overlay if the block shows other instructions. If it cannot be written, a message shows them.

        Raises:
            MnemeshError: The block cannot be read. Without core memory, there is no turn.
        """
        block_id = session.block_id
        assert block_id is not None, "a session with instructions has a block"  # noqa: S101
        # Another replica may have changed the instructions.
        session.sha256 = await self._overlays.sha256(block_id)
        try:
            if session.sha256 != overlay.sha256:
                await self._overlays.write(block_id, overlay, key.name)
                session.sha256 = overlay.sha256
                if agent.keeps_prompt:
                    await self._conversations.render_system_message(agent.id, session.conversation_id)
            session.fall_back(None)
        except NotFound:
            raise
        except MnemeshError as error:
            if session.fallback is None:
                _log.warning("overlay_not_written", session=key.name, agent_id=agent.id, error=error.message)
            session.fall_back(overlay)
        return session


def _cache_key(caller: Principal, agent_id: str, name: str) -> tuple[str, str, str]:
    return caller.organization_id, agent_id, name
