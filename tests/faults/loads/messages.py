"""Agents that write to each other."""

import ast
import asyncio
import re
from typing import Any

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh, text_of
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.turns import assert_whole, texts, window_of

from .contract import ASK, MODEL, everything, finished, last_round, once, words

SEND = "send_message_to_agent_async"


class Messages:
    """Two agents that ask the same third one, which tells a fourth one without waiting."""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.senders = [f"Sender{letter}-{self.mark}" for letter in "AB"]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for name in (*self.senders, f"Helper-{self.mark}", f"Listener-{self.mark}"):
            self.agents[name.partition("-")[0]] = await client.agents.create(
                name, model=MODEL, system=f"{name} is your name.", tools=[ASK, SEND], include_base_tools=False
            )

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        last, text = body["messages"][-1], texts(body)[-1]
        is_returned = last["role"] == "tool"
        if kind in ("SenderA", "SenderB"):
            if is_returned:
                return "I thank you."
            question = f"question {re.findall(r'Round ([0-9]+)', text)[-1]} of {kind}"
            return self._call(ASK, "Helper", question)
        if kind == "Helper":
            if is_returned:
                return f"answer to {re.findall(r'question [0-9]+ of [A-Za-z]+', str(body['messages']))[-1]}"
            return self._call(SEND, "Listener", f"report on {re.findall(r'question [0-9]+ of [A-Za-z]+', text)[-1]}")
        return "I hear."

    def _call(self, tool: str, other: str, message: str) -> Reply:
        return Reply(tool_calls=[Call(tool, {"message": message, "other_agent_id": self.agents[other].id})])

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""

        async def rounds_of(kind: str) -> None:
            agent = self.agents[kind]
            for number in range(rounds):
                self.at[kind] = number
                run = await finished(
                    client, lambda key, n=number: client.runs.start(agent.id, f"Round {n}.", request_id=key)
                )
                assert run.status == runs_pb2.RUN_STATUS_COMPLETED, run
                assert len(run.child_run_ids) == 1, run

        await asyncio.gather(*(rounds_of(name.partition("-")[0]) for name in self.senders))

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        questions = [f"question {number} of {kind}" for kind in ("SenderA", "SenderB") for number in range(rounds)]
        helper, listener = await everything(self.agents["Helper"]), await everything(self.agents["Listener"])
        question = r"question [0-9]+ of [A-Za-z]+"
        assert words(helper, message_pb2.ROLE_SYSTEM, question) == once(*questions)
        assert words(helper, message_pb2.ROLE_ASSISTANT, question) == once(*questions)
        assert words(listener, message_pb2.ROLE_SYSTEM, question) == once(*questions)
        for kind in ("SenderA", "SenderB"):
            returned = [item for message in await everything(self.agents[kind]) for item in message.tool_returns]
            replies = [ast.literal_eval(text_of(item.content))["response"] for item in returned]
            assert replies == [[f"answer to question {number} of {kind}"] for number in range(rounds)]
        for agent in self.agents.values():
            assert_whole(message for message in await window_of(client, agent))


class MutualQuestions:
    """Two agents that ask each other at the same time: one of them gets an error, or both are answered in turn."""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for kind in ("Xena", "Yann"):
            name = f"{kind}-{self.mark}"
            self.agents[kind] = await client.agents.create(
                name, model=MODEL, system=f"{name} is your name.", tools=[ASK], include_base_tools=False
            )

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        if body["messages"][-1]["role"] == "tool":
            return "Over."
        if query := re.findall(r"query [0-9]+ of [A-Za-z]+", texts(body)[-1]):
            return f"reply to {query[-1]}"
        other = self.agents["Yann" if kind == "Xena" else "Xena"]
        arguments = {"message": f"query {last_round(body)} of {kind}", "other_agent_id": other.id}
        return Reply(tool_calls=[Call(ASK, arguments)])

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        for number in range(rounds):
            self.at[""] = number
            ended = await asyncio.gather(
                *(
                    finished(
                        client, lambda key, a=agent, n=number: client.runs.start(a.id, f"Round {n}.", request_id=key)
                    )
                    for agent in self.agents.values()
                )
            )
            assert all(run.status == runs_pb2.RUN_STATUS_COMPLETED for run in ended), ended

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        for kind, other in (("Xena", "Yann"), ("Yann", "Xena")):
            asked = await everything(self.agents[other])
            answered = words(asked, message_pb2.ROLE_ASSISTANT, rf"reply to (query [0-9]+ of {kind})")
            received = words(asked, message_pb2.ROLE_SYSTEM, rf"query [0-9]+ of {kind}")
            assert set(received.values()) <= {1}
            returned = [item for message in await everything(self.agents[kind]) for item in message.tool_returns]
            assert len(returned) == rounds
            replies = [ast.literal_eval(text_of(item.content)) for item in returned]
            replied = [reply["response"][0].removeprefix("reply to ") for reply in replies if "response" in reply]
            assert once(*replied) == answered
            errors = {reply["type"] for reply in replies if "error" in reply}
            assert errors <= {"MESSAGE_CYCLE", "CANCELLED"}, replies
            assert_whole(await window_of(client, self.agents[kind]))
