"""Processes that are killed while an answer streams: no turn is lost, and none takes place twice."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from mnemesh.types.v1 import message_pb2
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import stored
from mnemesh_testkit.timeouts import scaled

QUESTION: list[Any] = [{"role": "user", "content": "Tell me."}]


@pytest.mark.full
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


@pytest.mark.mesh(gateway=True)
@pytest.mark.full
async def test_kill_while_a_batch_runs(process_mesh: ProcessMesh, fake_openai: FakeOpenAI) -> None:
    """All of its runs complete, each once, and its callback is called."""
    agents = [
        await process_mesh.client.agents.create(f"agent {number}", model="openai/fake-model", include_base_tools=False)
        for number in range(4)
    ]
    gate, called = asyncio.Event(), asyncio.Queue[bytes]()
    fake_openai.script = lambda _: Reply(text="Done.", gates=[gate])

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        called.put_nowait(await reader.readexactly(size))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    hook = await asyncio.start_server(receive, "127.0.0.1", 0)
    port = hook.sockets[0].getsockname()[1]
    url = f"http://{process_mesh.addresses['gateway']}/v1/messages/batches"
    requests = [{"agent_id": agent.id, "messages": [{"role": "user", "content": "Go."}]} for agent in agents]
    body = {"requests": requests, "callback_url": f"http://127.0.0.1:{port}/done"}
    async with hook, httpx.AsyncClient(timeout=scaled(60)) as http:
        key = {"idempotency-key": "batch-1"}
        batch = (await http.post(url, json=body, headers=key)).json()
        while len(fake_openai.requests) < len(agents):
            await asyncio.sleep(0.02)
        await process_mesh.kill("orchestrator")
        await process_mesh.kill("gateway")
        gate.set()
        await process_mesh.start("orchestrator")
        await process_mesh.start("gateway")
        async with asyncio.timeout(scaled(60)):
            done = json.loads(await called.get())
        assert (done["job_id"], done["status"]) == (batch["id"], "completed")
        again = (await http.post(url, json=body, headers=key)).json()
        assert (again["id"], again["metadata"]["runs"]["completed"]) == (batch["id"], len(agents))
    for agent in agents:
        roles = [message.role for message in await stored(agent)]
        assert (roles.count(message_pb2.ROLE_USER), roles.count(message_pb2.ROLE_ASSISTANT)) == (1, 1)
    assert called.empty()
