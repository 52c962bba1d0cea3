"""Sessions: a conversation of the agent for each session of a client, with a block that shows its instructions."""

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import structlog
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, conversations_pb2
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.agents.v1.conversations_service_pb2_grpc import ConversationServiceStub
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.time import Clock

from mnemesh_gateway.errors import InvalidRequest
from mnemesh_gateway.usecases.agents import Cache
from mnemesh_gateway.usecases.answering import READ, WRITE

OVERLAY_LABEL: Final = "proxy_system_overlay"
OVERLAY_NAME: Final = "Proxy System Overlay"
OVERLAY_DESCRIPTION: Final = (
    "Instructions of the application through which this conversation takes place. They apply to this conversation only."
)
SESSION_HEADER: Final = "x-session-id"
FRONT_END_HEADERS: Final = (
    "x-openwebui-chat-id",
    "x-conversation-id",
    "x-librechat-conversation-id",
    "x-chat-id",
    "x-thread-id",
    "x-litellm-session-id",
    "helicone-session-id",
)
"""The headers with which front ends and proxies name a chat, by precedence. LibreChat sends what its operator sets."""
FRONT_END_FIELDS: Final = ("chat_id", "conversation_id", "session_id", "thread_id")
"""The fields of `metadata` in which clients name a chat, by precedence."""
_SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_NO_ID: Final = re.compile(r"(new|null|none|undefined|local|\{\{.*\}\}|\$\{.*\})?", re.IGNORECASE)
"""What front ends send for a chat without an id, and placeholders that nothing replaced."""
_WORD: Final = re.compile(r"(?<!\w)[^\W\d]+(?!\w)")
"""A word without digits: no number, date, time or version."""
_SIGNIFICANT: Final = 20_000
"""The characters at the beginning of instructions that tell them from others."""
_TIME_WORDS: Final = """
january february march april may june july august september october november december
monday tuesday wednesday thursday friday saturday sunday
jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun
januar februar märz mai juni juli oktober dezember montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag
janvier février mars avril juin juillet août septembre octobre novembre décembre
lundi mardi mercredi jeudi vendredi samedi dimanche
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
lunes martes miércoles jueves viernes sábado domingo
gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre
lunedì martedì mercoledì giovedì venerdì sabato domenica
janeiro fevereiro março maio junho julho setembro outubro novembro dezembro segunda terça quarta quinta sexta feira
januari februari maart mei juni juli augustus maandag dinsdag woensdag donderdag vrijdag zaterdag zondag
am pm utc gmt t z morning afternoon evening night
"""

_NOT_COUNTED: Final = frozenset(_TIME_WORDS.split())


@dataclass(frozen=True, slots=True)
class Overlay:
    """The instructions of a session, cleaned, and their hash."""

    text: str
    sha256: str


def client_session(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> str | None:
    """Returns the name of the session that a client gives; None if it names none.

    Args:
        headers: The headers of the request, by their names in lower case.
        metadata: The metadata of the request.

    Raises:
        InvalidRequest: X-Session-Id is not valid.
    """
    session_id = headers.get(SESSION_HEADER)
    if session_id is not None:
        if not _SESSION_ID.fullmatch(session_id):
            raise InvalidRequest("X-Session-Id must have 1 to 200 visible ASCII characters.", "X-Session-Id")
        return f"session/{session_id}"
    given = [(name, headers.get(name)) for name in FRONT_END_HEADERS]
    given += [(name, metadata.get(name)) for name in FRONT_END_FIELDS]
    for name, value in given:
        if isinstance(value, str) and not _NO_ID.fullmatch(value.strip()):
            return f"{name}/{_short(value.strip())}"
    return None


def derived_session(user: str | None, instructions: str | None) -> str | None:
    """Returns the name of the session of a request whose client names none; None is the default conversation.

    The instructions count without times, dates and numbers, which front ends write into them.
    """
    if user:
        return f"user/{_short(user)}"
    if instructions is None:
        return None
    words = _WORD.findall(overlay_of(instructions[:_SIGNIFICANT]).text.lower())
    text = " ".join(word for word in words if word not in _NOT_COUNTED)
    return f"system/{hashlib.sha256(text.encode()).hexdigest()}"


def _short(value: str) -> str:
    """Returns an id as it is if it can be part of a key, otherwise its hash."""
    return value if _SESSION_ID.fullmatch(value) else hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()


def overlay_of(instructions: str) -> Overlay:
    """Returns the overlay for instructions. Carriage returns and NUL characters are removed."""
    text = instructions.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return Overlay(text, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest())


def preface(overlay: Overlay) -> str:
    """Returns the message that shows the instructions if the overlay cannot be written."""
    return f"[{OVERLAY_NAME}]: {overlay.text}"


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

    def __init__(self, orchestrator: grpc.aio.Channel, blocks: grpc.aio.Channel, clock: Clock) -> None:
        self._conversations = ConversationServiceStub(orchestrator)
        self._agents = AgentServiceStub(orchestrator)
        self._blocks = BlockServiceStub(blocks)
        self._cache: Cache[tuple[str, str, str], Session] = Cache(CAPACITY, SECONDS, clock)

    async def open(
        self, caller: Principal, agent: agents_pb2.Agent, name: str | None, instructions: str | None
    ) -> Session:
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
        session = await self._find(caller, agent.id, name)
        if instructions is None:
            return session
        try:
            return await self._show(agent, session, overlay_of(instructions))
        except NotFound:
            # The conversation was deleted since this process found it.
            self.forget(caller, session)
            session = await self._find(caller, agent.id, name)
            return await self._show(agent, session, overlay_of(instructions))

    async def resume(
        self, caller: Principal, agent: agents_pb2.Agent, conversation_id: str, instructions: str | None
    ) -> Session:
        """Returns the session of an existing conversation. Without an overlay block, a message has the instructions.

        Raises:
            NotFound: The conversation does not exist, or is one of another agent.
        """
        name = f"conversation/{conversation_id}"
        cache_key = _cache_key(caller, agent.id, name)
        session = self._cache.get(cache_key)
        if session is None:
            request = rpc.GetConversationRequest(conversation_id=conversation_id)
            found = (await self._conversations.GetConversation(request, timeout=READ)).conversation
            if found.agent_id != agent.id:
                raise NotFound(f"The agent has no conversation {conversation_id}.", resource_id=conversation_id)
            blocks = dict(zip(found.isolated_block_labels, found.isolated_block_ids, strict=False))
            session = Session(name, agent.id, conversation_id, blocks.get(OVERLAY_LABEL))
            self._cache.put(cache_key, session)
        if instructions is None:
            return session
        if session.block_id is None:
            session.fall_back(overlay_of(instructions))
            return session
        return await self._show(agent, session, overlay_of(instructions))

    def forget(self, caller: Principal, session: Session) -> None:
        """Forgets a session whose conversation does not exist any more."""
        self._cache.remove(_cache_key(caller, session.agent_id, session.name))

    def known(self, caller: Principal) -> Iterator[dict[str, Any]]:
        """Yields the sessions of the caller's agents that this process knows, for /debug/sessions."""
        for (organization_id, agent_id, name), session, seconds in self._cache.items():
            is_reachable = caller.agents is None or agent_id in caller.agents
            if organization_id == caller.organization_id and is_reachable:
                yield {
                    "session": name,
                    "agent_id": agent_id,
                    "conversation_id": session.conversation_id,
                    "overlay_block_id": session.block_id,
                    "system_sha256": session.sha256,
                    "fallback_used": session.fallback is not None,
                    "expires_in_seconds": round(seconds),
                }

    def _default(self, caller: Principal, agent: agents_pb2.Agent) -> Session:
        cache_key = _cache_key(caller, agent.id, "default")
        session = self._cache.get(cache_key)
        if session is None:
            session = Session("default", agent.id, agent.default_conversation_id)
            self._cache.put(cache_key, session)
        return session

    async def _find(self, caller: Principal, agent_id: str, name: str) -> Session:
        """Returns the session with a name; creates what is missing of its conversation and block."""
        cache_key = _cache_key(caller, agent_id, name)
        session = self._cache.get(cache_key)
        if session is None:
            conversation = conversations_pb2.Conversation(
                agent_id=agent_id, key=name, isolated_block_labels=[OVERLAY_LABEL], summary=f"Gateway: {name}"
            )
            request = rpc.CreateConversationRequest(conversation=conversation, create_missing_blocks=True)
            made = (await self._conversations.CreateConversation(request, timeout=WRITE)).conversation
            session = Session(name, agent_id, made.id, made.isolated_block_ids[0])
            self._cache.put(cache_key, session)
        return session

    async def _show(self, agent: agents_pb2.Agent, session: Session, overlay: Overlay) -> Session:
        """Writes the overlay if the block shows other instructions. If it cannot be written, a message shows them.

        Raises:
            MnemeshError: the block cannot be read. Without core memory, there is no turn.
        """
        # Another replica may have changed the instructions.
        session.sha256 = await self._shown_sha256(session)
        try:
            if session.sha256 != overlay.sha256:
                await self._write(session, overlay)
                session.sha256 = overlay.sha256
                if agent.prompt_policy == agents_pb2.PROMPT_POLICY_CACHE:
                    request = agents_service_pb2.RecompileAgentRequest(
                        agent_id=agent.id, conversation_id=session.conversation_id
                    )
                    await self._agents.RecompileAgent(request, timeout=WRITE)
            session.fall_back(None)
        except NotFound:
            raise
        except MnemeshError as error:
            if session.fallback is None:
                _log.warning("overlay_not_written", session=session.name, agent_id=agent.id, error=error.message)
            session.fall_back(overlay)
        return session

    async def _shown_sha256(self, session: Session) -> str | None:
        """Returns the hash of the instructions in the session's block; None if it has none. Raises NotFound."""
        request = blocks_service_pb2.GetBlockRequest(block_id=session.block_id or "")
        block = (await self._blocks.GetBlock(request, timeout=READ)).block
        metadata: dict[str, Any] = json.loads(block.metadata) if block.HasField("metadata") else {}
        return metadata.get("system_sha256")

    async def _write(self, session: Session, overlay: Overlay) -> None:
        """Stores instructions in a block that agents cannot edit, with a limit that fits them."""
        block = blocks_pb2.Block(
            id=session.block_id or "",
            name=OVERLAY_NAME,
            description=OVERLAY_DESCRIPTION,
            value=overlay.text,
            limit=max(1, len(overlay.text)),
            read_only=True,
            metadata=json.dumps({"proxy_session": session.name, "system_sha256": overlay.sha256}),
        )
        mask = FieldMask(paths=["name", "description", "value", "limit", "read_only", "metadata"])
        request = blocks_service_pb2.UpdateBlockRequest(block=block, update_mask=mask)
        await self._blocks.UpdateBlock(request, timeout=WRITE)


def _cache_key(caller: Principal, agent_id: str, name: str) -> tuple[str, str, str]:
    return caller.organization_id, agent_id, name
