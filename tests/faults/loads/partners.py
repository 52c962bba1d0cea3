"""An agent with partners."""

import re
from typing import Any

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh
from mnemesh_client.groups import Group
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.turns import assert_whole, texts, window_of

from .contract import MODEL, everything, finished, last_round, once, persist, words


class Partners:
    """An agent with two partners, which write down the facts that they read."""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}
        self.group: Group | None = None

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for kind in ("Front", "Pat", "Pam"):
            self.agents[kind] = await client.agents.create(
                f"{kind}-{self.mark}",
                model=MODEL,
                type="letta_v1" if kind == "Front" else "sleeptime_agent",
                system=f"{kind}-{self.mark} is your name.",
                blocks={f"notes_of_{kind}": "Facts:"},
            )
        partners = [self.agents[kind].id for kind in ("Pat", "Pam")]
        self.group = await client.groups.create(
            partners,
            manager_type="sleeptime",
            manager_agent_id=self.agents["Front"].id,
            sleeptime_agent_frequency=3,
        )

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        if kind == "Front":
            return f"I note it, {last_round(body)}."
        if body["messages"][-1]["role"] == "tool":
            return "All is written down."
        facts = " ".join(re.findall(r"Round ([0-9]+)", texts(body)[-1]))
        return Reply(tool_calls=[Call("memory_insert", {"label": f"notes_of_{kind}", "new_str": facts})])

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        agent = self.agents["Front"]
        for number in range(rounds):
            self.at[""] = number
            run = await finished(
                client, lambda key, n=number: client.runs.start(agent.id, f"Round {n}.", request_id=key)
            )
            assert run.status == runs_pb2.RUN_STATUS_COMPLETED, run
            assert len(run.child_run_ids) == (2 if number % 3 == 2 else 0), run
        request_id = new_id("request").partition("-")[2]
        await persist(lambda: client.sleeptime.start(agent_id=agent.id, request_id=request_id))

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        numbers = [str(number) for number in range(rounds)]
        front = await everything(self.agents["Front"])
        assert words(front, message_pb2.ROLE_USER, r"Round ([0-9]+)") == once(*numbers)
        assert words(front, message_pb2.ROLE_ASSISTANT, r"I note it, ([0-9]+)") == once(*numbers)
        for kind in ("Pat", "Pam"):
            messages = await everything(self.agents[kind])
            assert words(messages, message_pb2.ROLE_USER, r"Round ([0-9]+)") == once(*numbers)
            assert words(messages, message_pb2.ROLE_USER, r"I note it, ([0-9]+)") == once(*numbers)
            blocks = {block.label: block.value for block in (await self.agents[kind].memory()).blocks}
            assert blocks[f"notes_of_{kind}"].removeprefix("Facts:").split() == numbers
            assert_whole(await window_of(client, self.agents[kind]))
