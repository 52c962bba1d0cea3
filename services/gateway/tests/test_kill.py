"""Processes that are killed while an answer streams: no turn is lost, and none takes place twice."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from mnemesh.types.v1 import message_pb2
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.script import Reply
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import stored

QUESTION: list[Any] = [{"role": "user", "content": "Tell me."}]


@pytest.mark.mesh(gateway=True)
async def test_kill_in_the_middle_of_a_stream(process_mesh: ProcessMesh, fake_openai: FakeOpenAI) -> None:
    agent = await process_mesh.client.agents.create("ada", model="openai/fake-model", include_base_tools=False)
    gates = [asyncio.Event(), asyncio.Event()]
    gates[0].set()
    long = Reply(text="A long answer, in two parts.", gates=gates)
    fake_openai.script = lambda _: long

    async def begin(sdk: openai.AsyncOpenAI, messages: list[Any]) -> Any:
        stream = await sdk.chat.completions.create(model="ada", messages=messages, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                return stream, chunk
        raise AssertionError("the stream ended early")

    url = f"http://{process_mesh.addresses['gateway']}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as sdk:
        stream, first = await begin(sdk, QUESTION)
        await process_mesh.kill("gateway")
        with pytest.raises(Exception, match=r"peer closed|incomplete|Connection|read"):
            [chunk async for chunk in stream]
        await process_mesh.start("gateway")
        gates[1].set()
        answer = await sdk.chat.completions.create(model="ada", messages=QUESTION)
        assert (answer.id, answer.choices[0].message.content) == (first.id, "A long answer, in two parts.")

        gates[1].clear()
        history = [*QUESTION, {"role": "assistant", "content": "A long answer, in two parts."}, *QUESTION]
        stream, first = await begin(sdk, history)
        await process_mesh.kill("orchestrator")
        gates[1].set()
        await process_mesh.start("orchestrator")
        rest = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert first.choices[0].delta.content + rest == "A long answer, in two parts."
    said = [message for message in await stored(agent) if message.role == message_pb2.ROLE_USER]
    assert len(said) == 2
