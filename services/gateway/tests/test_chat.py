"""Chat completions through OpenAI's SDK: answers, streams, sessions, and only new messages."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply, status
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import stored, texts
from mnemesh_testkit.timeouts import scaled

TEXT = "Grüß dich, Ada 🦜 – “so”."
PNG = "data:image/png;base64,iVBORw0KGgo="
OVERLAY = "proxy_system_overlay"


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def ask(sdk: openai.AsyncOpenAI, *messages: Any, model: str = "ada", **more: Any) -> Any:
    return await sdk.chat.completions.create(model=model, messages=list(messages), **more)


async def words(agent: Agent) -> list[str]:
    """What users said to the agent, in any conversation, as recall has it."""
    return [
        "".join(part.text.text for part in message.content)
        for message in await stored(agent)
        if message.role == message_pb2.ROLE_USER
    ]


async def overlays(mesh: Mesh) -> list[Any]:
    """The overlay blocks of all sessions."""
    request = blocks_service_pb2.ListBlocksRequest(filter=blocks_service_pb2.BlockFilter(label=OVERLAY, hidden=True))
    return list((await mesh.stubs.blocks.ListBlocks(request)).blocks)


async def test_answer(sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text=TEXT, reasoning="A greeting.")
    answers = [await ask(sdk, user("Hallo"), model=model) for model in ("ada", agent.id)]
    for answer in answers:
        choice = answer.choices[0]
        assert (choice.message.content, choice.finish_reason, choice.message.role) == (TEXT, "stop", "assistant")
        assert choice.message.reasoning_content == "A greeting."
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (11, 7, 18)
        assert answer.id.startswith("chatcmpl-")
        assert answer._request_id
    assert await words(agent) == ["Hallo", "Hallo"], "the second is said again, because the first was answered"


async def test_stream(sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI, base_url: str) -> None:
    fake_openai.script = lambda _: Reply(text=TEXT, reasoning="A greeting.", piece_size=3)
    stream = await ask(sdk, user("Hallo"), stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    deltas = [chunk.choices[0].delta for chunk in chunks[1:-2]]
    assert "".join(delta.content or "" for delta in deltas) == TEXT
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "A greeting."
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 18)
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60)) as raw:
        body = {"model": "ada", "messages": [user("Noch einmal")], "stream": True}
        answer = await raw.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "Grüß" in answer.text
    assert "\\u" not in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in answer.text


async def test_models(mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent) -> None:
    twins = [await mesh.client.agents.create("twin", model="openai/fake-model") for _ in range(2)]
    sleeper = await mesh.client.agents.create("sleeper", model="openai/fake-model", enable_sleeptime=True)
    listed = [model.id for model in (await sdk.models.list()).data]
    assert listed == ["ada", agent.id, *(twin.id for twin in twins), "sleeper", sleeper.id], (
        "a name that two agents have is not a model, and sleeper's partner is none"
    )
    assert (await sdk.models.retrieve("ada")).agent_id == agent.id  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError) as missing:
        await ask(sdk, user("Hello"), model="eve")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert "ada" in missing.value.message
    with pytest.raises(openai.BadRequestError, match="Several agents"):
        await ask(sdk, user("Hello"), model="twin")


async def test_conversation_goes_on_when_the_system_message_has_another_time(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = lambda _: Reply(text="Aye.")
    history: list[Any] = []
    for minute, text in enumerate(("One", "Two", "Three")):
        history.append(user(text))
        await ask(sdk, system(f"It is Friday, 2026-11-29 10:{minute:02}:00."), *history)
        history.append({"role": "assistant", "content": "Aye."})
    (block,) = await overlays(mesh)
    assert block.value == "It is Friday, 2026-11-29 10:02:00."
    shown = texts(fake_openai.requests[-1].body)
    assert "10:02:00" in shown[0]
    assert [word for word in ("One", "Two", "Three") if word in str(shown[1:])] == ["One", "Two", "Three"]

    await ask(sdk, system("The weather has changed: it snows."), *history, user("Four"))
    assert len(await overlays(mesh)) == 1, "the history names the conversation"
    shown = texts(fake_openai.requests[-1].body)
    assert ["snows" in shown[0], "10:02" in shown[0], "One" in str(shown[1:])] == [True, False, True]


async def test_conversation_is_the_chat_of_the_front_end_or_the_one_of_the_user(
    sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = lambda _: Reply(text="Aye.")

    async def seen(text: str, **more: Any) -> list[str]:
        await ask(sdk, system(f"Prompt of {text}"), user(text), **more)
        shown = str(texts(fake_openai.requests[-1].body)[1:])
        return [word for word in ("Anchor", "Buoy", "Cable", "Deck") if word in shown]

    chat = {"extra_headers": {"X-OpenWebUI-Chat-Id": "chat-1"}}
    assert await seen("Anchor", **chat, user="ada") == ["Anchor"]
    assert await seen("Buoy", user="ada") == ["Buoy"]
    assert await seen("Cable", user="ada") == ["Buoy", "Cable"]
    assert await seen("Deck", **chat, user="ada") == ["Anchor", "Deck"]


async def test_system_message_is_a_read_only_block_of_the_session(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = lambda _: Reply(text="Aye.")
    named = {"extra_headers": {"X-Session-Id": "web-1"}}
    for text in ("One", "Two", "Three"):
        await ask(sdk, system("Speak like a pirate.\r\n"), user(text), **named)
    (block,) = await overlays(mesh)
    assert (block.value, block.read_only, block.revision) == ("Speak like a pirate.\n", True, 2), "written once"
    assert json.loads(block.metadata)["proxy_session"] == "session/web-1"
    assert "Speak like a pirate." in texts(fake_openai.requests[-1].body)[0]

    long = "Speak like a queen. " * 2_500
    await ask(sdk, system(long), user("Four"), **named)
    await ask(sdk, user("Five"), **named)
    (changed,) = await overlays(mesh)
    assert (changed.id, changed.value, changed.limit, changed.revision) == (block.id, long, len(long), 3)
    assert [len([text for text in texts(request.body) if "pirate" in text]) for request in fake_openai.requests] == [
        *(1, 1, 1, 0, 0)
    ]
    assert "queen" in texts(fake_openai.requests[-1].body)[0], "a message without instructions leaves them"

    await ask(sdk, system("Rhyme."), user("Six"))
    await ask(sdk, system("Be brief."), user("Seven"))
    await ask(sdk, user("Eight"))
    seen = [texts(request.body) for request in fake_openai.requests[-3:]]
    assert ["Rhyme." in seen[0][0], "Be brief." in seen[1][0], "Rhyme" in seen[2][0]] == [True, True, False]
    shown = [[name for name in ("Six", "Seven", "Eight") if name in str(one[1:])] for one in seen]
    assert shown == [["Six"], ["Seven"], ["Eight"]], "each session has its own window"
    memory = await mesh.client.blocks.core_memory(agent.id)
    assert [held.label for held in memory.blocks] == ["human"], "the agent's own core memory is as it was"


async def test_replayed_history_sends_only_what_is_new(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    replies = iter(["A1", "A2", "A3", "A4"])
    fake_openai.script = lambda _: Reply(text=next(replies))
    history = [system("Be kind."), user("Q1")]
    for number in (1, 2, 3):
        answer = await ask(sdk, *history)
        assert answer.choices[0].message.content == f"A{number}"
        again = await ask(sdk, *history) if number > 1 else answer
        assert (again.id, again.choices[0].message.content) == (answer.id, f"A{number}"), "a repeat is the same turn"
        history += [said(f"A{number}"), user(f"Q{number + 1}")]
    assert await words(agent) == ["Q1", "Q2", "Q3"]
    # Truncated and edited history: the last message is new, the rest is known or gone.
    assert (await ask(sdk, system("Be kind."), user("Q2"), said("edited"), user("Q9"))).choices[
        0
    ].message.content == "A4"
    assert await words(agent) == ["Q1", "Q2", "Q3", "Q9"]
    await mesh.restart("gateway")
    repeated = await ask(sdk, *history[:-2])
    assert repeated.choices[0].message.content == "A3"
    assert len(fake_openai.requests) == 4


async def test_nothing_new_is_answered_without_a_model_call(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    for messages in ([system("Be kind.")], [user("Q1"), said("A1")], [user("")]):
        answer = await ask(sdk, *messages)
        assert (answer.choices[0].message.content, answer.usage.total_tokens) == ("", 0)
        chunks = [chunk async for chunk in await ask(sdk, *messages, stream=True)]
        assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"]
    assert fake_openai.requests == []
    assert [block.value for block in await overlays(mesh)] == ["Be kind."], "the overlay is current nevertheless"


async def test_images_and_several_parts(sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text="A cat.")
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
    ]
    await ask(sdk, user(parts), user("And this?"))
    content = [message.content for message in await stored(agent) if message.role == message_pb2.ROLE_USER]
    assert [part.WhichOneof("part") for part in content[0]] == ["text", "image", "image"]
    assert content[0][1].image.inline.media_type == "image/png"
    assert content[0][2].image.url == "https://example.com/cat.png"
    assert content[1][0].text.text == "And this?"
    replayed = [user(parts), user("And this?"), said("A cat."), user("Sure?")]
    await ask(sdk, *replayed)
    assert len(await words(agent)) == 3


async def test_disconnect_loses_no_turn_and_repeats_none(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    gate = asyncio.Event()
    fake_openai.script = [Reply(text="A long answer.", gates=[asyncio.Event(), gate]), "Another."]
    fake_openai.player.script[0].gates[0].set()
    stream = await ask(sdk, user("Tell me."), stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    gate.set()
    answer = await ask(sdk, user("Tell me."))
    assert answer.choices[0].message.content == "A long answer."
    assert answer.id == chunk.id
    assert (await ask(sdk, user("Tell me."))).choices[0].message.content == "Another.", "now it was answered"
    assert await words(agent) == ["Tell me.", "Tell me."]


async def test_failed_turn_is_repeated_by_the_same_request(
    sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = [status(400, "No such parameter."), "Fine.", "And you?"]
    with pytest.raises(openai.APIStatusError):
        await ask(sdk, user("How are you?"))
    assert (await ask(sdk, user("How are you?"))).choices[0].message.content == "Fine."
    unanswered = [user("How are you?"), user("Well?")]
    assert (await ask(sdk, *unanswered)).choices[0].message.content == "And you?"
    assert await words(agent) == ["How are you?", "Well?"]


async def test_retry_in_a_shared_session_finds_its_run(
    sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    gates[0].set()
    fake_openai.script = [Reply(text="A long answer.", gates=gates), "Two.", "One again.", "Two again."]
    stream = await ask(sdk, user("One"), stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    gates[1].set()
    assert (await ask(sdk, user("Two"))).choices[0].message.content == "Two."
    retry = {"X-Stainless-Retry-Count": "1"}
    again = await ask(sdk, user("One"), extra_headers=retry)
    assert (again.id, again.choices[0].message.content) == (chunk.id, "A long answer.")
    assert await words(agent) == ["One", "Two"]
    assert (await ask(sdk, user("One"), extra_headers=retry)).choices[0].message.content == "One again."
    assert (await ask(sdk, user("Two"))).choices[0].message.content == "Two again."
    assert await words(agent) == ["One", "Two", "One", "Two"], "answers that arrived are not repeated"


TITLES = (
    "### Task:\nGenerate a title with an emoji.\n### Chat History:\n<chat_history>\nUSER: Q1\n</chat_history>",
    "Provide a concise, 5-word-or-less title for the conversation, using title case conventions.",
    "Please generate a four to five word title summarizing our conversation without any lead-in.",
)

MESSAGES = (
    "Write a title for my poem.",
    # Open WebUI's template for questions about documents.
    (
        "### Task:\nRespond to the user query using the provided context.\n### Output:\nA clear response.\n<context>\n"
        '<source id="1">The rent is due.</source>\n</context>\n<user_query>\nWhen?\n</user_query>'
    ),
)


async def test_titles_do_not_pollute_memory(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = lambda body: Reply(text="Title" if "title" in str(body["messages"][-1]) else "A1")
    await ask(sdk, user("Q1"))
    for title in TITLES:
        answer = await ask(sdk, user("Q1"), said("A1"), user(title), max_tokens=50)
        assert answer.choices[0].message.content == "Title"
    streamed = await ask(sdk, user("Q9"), stream=True, extra_headers={"X-Mnemesh-Task": "tags"})
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in streamed]) == "A1"
    assert await words(agent) == ["Q1"]
    assert "Nothing yet." not in str(fake_openai.requests[1].body), "the agent's memory is not shown"
    record = [system(TITLES[1]), user("user: Q1\nassistant: A1")]
    assert (await ask(sdk, *record)).choices[0].message.content == "A1"
    for question in MESSAGES:
        await ask(sdk, user("Q1"), said("A1"), user(question))
    assert await words(agent) == ["Q1", *MESSAGES]
    await ask(sdk, system("Answer, then suggest a title for the discussion."), user("Q2"))
    assert (await words(agent))[-1] == "Q2"
    await mesh.stop("gateway")
    left = [one.name async for one in mesh.client.agents.list()]
    assert left == ["ada"]
    await mesh.start("gateway")


async def test_agents_of_tasks_that_a_killed_process_left_are_deleted(tmp_path: Path, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text="Hi.")
    clock = FrozenClock()
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, gateway=True, clock=clock) as mesh:
        for name, is_hidden, tags in (("left", True, ["gateway-task"]), ("ada", False, ["gateway-task"])):
            agent = agents_pb2.Agent(
                name=name, type=agents_pb2.AGENT_TYPE_LETTA_V1, model="openai/fake-model", hidden=is_hidden
            )
            agent.tags.extend(tags)
            await mesh.stubs.agents.CreateAgent(agents_service_pb2.CreateAgentRequest(agent=agent))
        clock.advance(1_801)
        async with openai.AsyncOpenAI(base_url=f"http://{mesh.addresses['gateway']}/v1", api_key="any") as client:
            await ask(client, user("Hello"))
        await mesh.stop("gateway")
        assert [one.name async for one in mesh.client.agents.list()] == ["ada"]
        await mesh.start("gateway")
