"""Agents with a requested number of stored messages and messages in the window."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, runs_pb2
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.agents.v1.groups_service_pb2_grpc import GroupServiceStub
from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceStub
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_kit.channels import Channels
from mnemesh_kit.ids import new_id

_BATCH: Final = 500
WORDS: Final = (
    "garden letter winter river coffee window train sister music doctor market paper bridge summer kitchen morning "
    "ticket engine island school painter planet button harbour lesson mirror orchard pocket quarter shadow tunnel "
    "violin weather yellow anchor basket candle dragon evening forest guitar hammer insect jacket kettle lantern"
)


class Connection:
    """Connects to the orchestrator for agents, groups and turns, and to recall for history and windows."""

    def __init__(self, config: MeshConfig, token: str | None = None) -> None:
        self._channels = Channels(deadline=60.0, tls=config.tls, token=token)
        orchestrator = self._channels.channel(config.address("orchestrator"))
        self.agents = AgentServiceStub(orchestrator)
        self.runs = RunServiceStub(orchestrator)
        self.groups = GroupServiceStub(orchestrator)
        self.recall = MessageServiceStub(self._channels.channel(config.address("recall")))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channels.close()


@dataclass(frozen=True, slots=True)
class MeasuredAgent:
    """An agent and the initial messages of its window."""

    id: str
    conversation_id: str
    window_ids: tuple[str, ...]

    async def trim(self, connection: Connection) -> None:
        """Restores the initial window."""
        request = recall.GetContextRequest(conversation_id=self.conversation_id)
        context = (await connection.recall.GetContext(request)).context
        await connection.recall.ReplaceContext(
            recall.ReplaceContextRequest(
                agent_id=self.id,
                conversation_id=self.conversation_id,
                base_version=context.version,
                message_ids=self.window_ids,
            )
        )


async def create_agent(
    connection: Connection, *, model: str, stored: int, window: int, policy: str = "v1"
) -> MeasuredAgent:
    """Creates an agent with two blocks, `stored` messages and a window of `window`; the rest is that of its type."""
    chance = random.Random(stored * 1000 + window)
    shown = min(window, stored) - 1  # the system message is the first of the window
    created = await connection.agents.CreateAgent(
        new_agent(
            model,
            policy,
            [runs_pb2.InputMessage(role=_role(position), content=[_text(chance)]) for position in range(shown)],
        )
    )
    agent_id, conversation_id = created.agent.id, created.agent.default_conversation_id
    started = datetime.now(UTC) - timedelta(days=30)
    older = stored - shown - 1
    for start in range(0, older, _BATCH):
        positions = range(start, min(start + _BATCH, older))
        messages = [_message(agent_id, each, started + timedelta(minutes=each), chance) for each in positions]
        request = recall.AppendMessagesRequest(agent_id=agent_id, messages=messages)
        await connection.recall.AppendMessages(request)
    context = (await connection.recall.GetContext(recall.GetContextRequest(conversation_id=conversation_id))).context
    return MeasuredAgent(agent_id, conversation_id, tuple(message.id for message in context.messages))


def new_agent(
    model: str, policy: str = "v1", messages: Sequence[runs_pb2.InputMessage] | None = None
) -> agents_service_pb2.CreateAgentRequest:
    """Returns the request that creates an agent with two blocks. None for messages leaves those of its type."""
    return agents_service_pb2.CreateAgentRequest(
        agent=agents_pb2.Agent(
            type=agents_pb2.AGENT_TYPE_LETTA_V1 if policy == "v1" else agents_pb2.AGENT_TYPE_MEMGPT_V2,
            model=f"openai/{model}",
        ),
        blocks=[
            blocks_pb2.Block(label="human", value="Ada Marlow, a gardener in Lisbon.\nLikes long letters."),
            blocks_pb2.Block(label="persona", value="A patient companion that remembers what it was told."),
        ],
        initial_messages=agents_service_pb2.InitialMessages(messages=messages) if messages is not None else None,
    )


def _role(position: int) -> message_pb2.Role.ValueType:
    return message_pb2.ROLE_ASSISTANT if position % 2 else message_pb2.ROLE_USER


def _text(chance: random.Random) -> message_pb2.ContentPart:
    words = " ".join(chance.choices(WORDS.split(), k=18))
    return message_pb2.ContentPart(text=message_pb2.TextPart(text=f"{words.capitalize()}."))


def _message(agent_id: str, position: int, at: datetime, chance: random.Random) -> message_pb2.Message:
    role, content = _role(position), [_text(chance)]
    message = message_pb2.Message(id=new_id("message"), agent_id=agent_id, role=role, content=content)
    message.create_time.FromDatetime(at)
    return message
