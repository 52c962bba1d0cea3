"""Groups of each kind whose members say that they are there."""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh, text_of
from mnemesh_client.groups import Group
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.turns import assert_whole, texts, window_of

from .contract import MODEL, everything, finished, last_round, once, persist, words

TO_GROUP = "send_message_to_all_agents_in_group"


class Members:
    """A group whose agents say, once per round, that they are there. Subclasses choose the manager."""

    manager: Mapping[str, Any] = {}
    manager_name = ""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}
        self.group: Group | None = None

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for kind in ("Ann", "Ben", "Cleo", *([self.manager_name] if self.manager_name else [])):
            self.agents[kind] = await client.agents.create(
                f"{kind}-{self.mark}", model=MODEL, system=f"{kind}-{self.mark} is your name.", include_base_tools=False
            )
        manager = {"manager_agent_id": self.agents[self.manager_name].id} if self.manager_name else {}
        members = [self.agents[kind].id for kind in ("Ann", "Ben", "Cleo")]
        self.group = await client.groups.create(members, **self.manager, **manager)

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        if kind == self.manager_name:
            return self.manage(body)
        return f"{kind} is here in round {last_round(body)}."

    def manage(self, body: dict[str, Any]) -> Reply | str:
        """Returns the answer of the manager."""
        raise NotImplementedError

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        assert self.group is not None
        for number in range(rounds):
            self.at[""] = number
            run = await finished(
                client,
                lambda key, n=number: client.runs.start("", f"Round {n}.", group_id=self.group.id, request_id=key),
            )
            assert run.status == runs_pb2.RUN_STATUS_COMPLETED, run
            turns = Counter(child.agent_id for child in await persist(lambda r=run: listed(client, r.id)))
            assert turns == self.turns(), turns
            await self.verify_events(client, run)

    def turns(self) -> Counter[str]:
        """Returns the turns of each agent in a round."""
        return Counter(self.agents[kind].id for kind in ("Ann", "Ben", "Cleo"))

    async def verify_events(self, client: Mnemesh, run: runs_pb2.Run) -> None:
        """Checks the events of a group run: each turn begins and ends once, without gaps in the numbers."""
        events = [event async for event in client.runs.stream(run.id)]
        durable = [event.sequence for event in events if event.HasField("sequence")]
        assert durable == list(range(1, len(durable) + 1))
        for field in ("member_turn_started", "member_turn_ended"):
            numbers = [getattr(event, field).number for event in events if event.HasField(field)]
            assert numbers == list(range(1, self.turns().total() + 1)), (field, numbers)

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        for place, kind in enumerate(("Ann", "Ben", "Cleo")):
            messages = await everything(self.agents[kind])
            numbers = [str(number) for number in range(rounds)]
            assert words(messages, message_pb2.ROLE_ASSISTANT, r"is here in round ([0-9]+)") == once(*numbers)
            self.verify_inputs(messages, place, numbers)
            assert_whole(await window_of(client, self.agents[kind]))

    def verify_inputs(self, messages: list[message_pb2.Message], place: int, numbers: list[str]) -> None:
        """Checks what a member received."""
        assert words(messages, message_pb2.ROLE_USER, r"Round ([0-9]+)") == once(*numbers)
        before = [f"{kind} is here in round {number}" for kind in ("Ann", "Ben", "Cleo")[:place] for number in numbers]
        assert words(messages, message_pb2.ROLE_SYSTEM, r"[A-Z][a-z]+ is here in round [0-9]+") == once(*before)


class RoundRobin(Members):
    """The members speak one after another."""


class Dynamic(Members):
    """The manager lets the members speak in their order, and ends the round."""

    manager: Mapping[str, Any] = {"manager_type": "dynamic", "max_turns": 5}
    manager_name = "Dora"

    def manage(self, body: dict[str, Any]) -> Reply | str:
        """See Members."""
        said = re.findall(r"([A-Z][a-z]+) is here in round", texts(body)[-1])
        following = {"": "Ann", "Ann": "Ben", "Ben": "Cleo"}.get(said[-1] if said else "")
        return "DONE!" if following is None else f"{following}-{self.mark}"

    def turns(self) -> Counter[str]:
        """See Members."""
        return super().turns() + Counter({self.agents["Dora"].id: 4})


class Supervisor(Members):
    """The manager asks all members at once, and answers."""

    manager: Mapping[str, Any] = {"manager_type": "supervisor"}
    manager_name = "Sue"

    def manage(self, body: dict[str, Any]) -> Reply | str:
        """See Members."""
        if body["messages"][-1]["role"] == "tool":
            return f"All are there in round {last_round(body)}."
        return Reply(tool_calls=[Call(TO_GROUP, {"message": f"Round {last_round(body)}: who is there?"})])

    def turns(self) -> Counter[str]:
        """See Members."""
        return Counter({self.agents["Sue"].id: 1})

    def verify_inputs(self, messages: list[message_pb2.Message], place: int, numbers: list[str]) -> None:
        """See Members."""
        assert words(messages, message_pb2.ROLE_SYSTEM, r"Round ([0-9]+): who is there") == once(*numbers)

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Members."""
        await super().verify(client, rounds)
        numbers = [str(number) for number in range(rounds)]
        messages = await everything(self.agents["Sue"])
        assert words(messages, message_pb2.ROLE_ASSISTANT, r"All are there in round ([0-9]+)") == once(*numbers)
        returned = [item for message in messages for item in message.tool_returns]
        for number, item in enumerate(returned):
            replies = [reply["response"] for reply in ast.literal_eval(text_of(item.content))]
            assert replies == [[f"{kind} is here in round {number}."] for kind in ("Ann", "Ben", "Cleo")]
        assert len(returned) == rounds


async def listed(client: Mnemesh, run_id: str) -> list[runs_pb2.Run]:
    return [run async for run in client.runs.children(run_id)]
