"""The rehearsal in groups: as a member, a supervisor, and a partner that maintains another agent's memory."""

import json

import pytest
from mnemesh_orchestrator.llm.port import ToolChoice, ToolChoiceKind
from mnemesh_types.messages import Role, TextPart

from .rehearsal_agent import CLIENT, EDITOR, REHEARSAL, RETHINK, Agent
from .windows import ask, called, everything, message, returned, tool

PARTNER = EDITOR + RETHINK + (tool("memory_finish_edits"),)
VOICE = (
    tool("store_memories", ["chunks"], chunks={"type": "array"}),
    tool("rethink_user_memory", ["new_memory"], new_memory="string"),
    tool("finish_rethinking_memory"),
)
ASK_MEMBERS = tool("send_message_to_all_agents_in_group", ["message"], message="string")
REMINDER = (
    "<system-reminder>\nYou are NOT the primary agent.\n"
    '- The "assistant" messages below are from the primary agent\n</system-reminder>\n\nMessages:\n'
)

both_policies = pytest.mark.parametrize("v2", [False, True], ids=["V3", "V2"])


@both_policies
async def test_member_answers_the_words_of_the_others(v2: bool) -> None:
    agent = Agent(v2=v2)
    reply = await agent.send("Plan a picnic.", words=["bob: I bring tea.", "carl: I bring: bread.\nAnd jam."])

    assert "Hello, carl! I have read 2 messages from bob, carl." in reply
    assert "bob said: I bring tea." in reply
    assert "carl said: I bring: bread. And jam." in reply
    assert "I understand only" not in reply

    reply = await agent.send(words=["bob: Fine."])
    assert "Hello, bob! I have read 1 message from bob." in reply
    assert "carl" not in reply, "these words were answered before"


@both_policies
async def test_member_serves_the_user_and_answers_the_others(v2: bool) -> None:
    agent = Agent(v2=v2)
    reply = await agent.send("My name is Ada.", words=[f"bob: {await Agent().send('My name is Ada.')}"])

    assert agent.human == "\nName: Ada"
    assert "I wrote your name, Ada" in reply
    assert reply.count("[mnemesh/rehearsal") == 1, "the disclaimer of the others is not repeated"


@both_policies
async def test_agent_that_asks_gets_the_answer_that_a_user_would_get(v2: bool) -> None:
    agent = Agent(v2=v2, human="Name: Ada")
    head = "[This message comes from the agent boss (id agent-1), not from the user. It is returned as your reply.]"

    reply = await agent.send(words=[f"{head}\n\nWhat is my name?"])

    assert "Your name is Ada" in reply
    assert "Hello, boss! I have read 1 message from boss.\nboss said: What is my name?" in reply


@both_policies
async def test_agent_is_asked_for_the_user(v2: bool) -> None:
    asked = "agent-11111111-1111-4111-8111-111111111111"
    ask_agent = tool(
        "send_message_to_agent_and_wait_for_reply",
        ["message", "other_agent_id"],
        message="string",
        other_agent_id="string",
    )
    agent = Agent((ask_agent,), v2=v2)
    agent.replies = str({"agent_id": asked, "agent_name": "bob", "response": ["It is Ada."]})

    assert "bob: It is Ada." in await agent.send(f"Ask {asked}: what is my name?")

    assert agent.made[0][1] == {"message": "what is my name?", "other_agent_id": asked}
    assert "is not attached" in await Agent(v2=v2).send(f"Ask {asked}: what is my name?")


async def test_supervisor_that_must_ask_the_members_passes_the_message_on_and_reports_their_replies() -> None:
    forced = ToolChoice(ToolChoiceKind.NAMED, ASK_MEMBERS.name)
    said = message(1, Role.USER, "What is 2 + 2?")
    _, answer = await everything(CLIENT, ask(REHEARSAL, said, tools=(ASK_MEMBERS,), tool_choice=forced))
    call = answer.tool_calls[0]
    assert (call.name, json.loads(call.arguments)) == (ASK_MEMBERS.name, {"message": "What is 2 + 2?"})

    replies = str([{"agent_id": "agent-1", "agent_name": "bob", "response": ["It's 4."]}])
    past = (called(2, "c", call.name, call.arguments), returned(3, "c", call.name, replies))
    _, answer = await everything(CLIENT, ask(REHEARSAL, said, *past, tools=(ASK_MEMBERS,)))
    assert "bob: It's 4." in "".join(part.text for part in answer.content if isinstance(part, TextPart))


@pytest.mark.parametrize("head", ["", REMINDER], ids=["bare", "reminder"])
async def test_partner_writes_what_the_user_stated(head: str) -> None:
    agent = Agent(PARTNER, human="Likes tea.")
    transcript = (
        'user: {"type": "user_message", "message": "Hi, my name is Ada. I live in Paris.", "time": "2026-01-20"}\n'
        "assistant: <thinking>I live in a computer.</thinking>\nassistant: My name is Sam.\n"
        "user: Remember that the launch is on Friday.\nI have two cats!\nuser: Do I have a dog?"
    )

    assert await agent.send(head + transcript) == ""

    assert agent.human == "Likes tea.\nName: Ada\nI live in Paris.\nthe launch is on Friday.\nI have two cats!"
    assert [name for name, _ in agent.made] == ["memory_rethink", "memory_finish_edits"]
    await agent.send("user: My name is Ada. I live in Paris.")
    assert [name for name, _ in agent.made] == ["memory_finish_edits"]


async def test_partner_that_rewrites_the_block_writes_nothing_that_another_partner_wrote() -> None:
    agent = Agent(PARTNER, human="Likes tea.")
    agent.refusals = ["Name: Ada\nI live in Paris.", "Name: Ada\nI live in Paris.\nI have a dog."]

    await agent.send("user: My name is Ada. I live in Paris. I have two cats.")

    assert agent.human == "Name: Ada\nI live in Paris.\nI have a dog.\nI have two cats."
    assert [name for name, _ in agent.made] == [*["memory_rethink"] * 3, "memory_finish_edits"]
    await agent.send("user: My name is Ada.")
    assert [name for name, _ in agent.made] == ["memory_finish_edits"]


async def test_partner_without_the_block_or_without_facts_finishes() -> None:
    agent = Agent(PARTNER)
    await agent.send("user: How are you?\nassistant: I like tea.")
    assert [name for name, _ in agent.made] == ["memory_finish_edits"]
    agent.human = None
    await agent.send("user: I like tea.")
    assert [name for name, _ in agent.made] == ["memory_finish_edits"]


async def test_partner_answers_a_user_without_a_transcript() -> None:
    assert "I wrote your name, Ada" in await Agent(PARTNER).send("My name is Ada.")


@pytest.mark.parametrize(
    "transcript",
    [
        "(Older) 0. user: I live in Paris.\n(Older) 1. assistant: Nice.\n(Newer) 2. user: My name is Ada.",
        "0. (Older) user: I live in Paris.\n1. (Older) assistant: Nice.\n2. (Newer) user: My name is Ada.",
        "(Older)\n0. user: I live in Paris.\n1. assistant: Nice.\n(Newer)\n2. user: My name is Ada.",
    ],
)
async def test_voice_partner_rewrites_the_block(transcript: str) -> None:
    agent = Agent(VOICE, v2=True, human="Likes tea.")

    assert await agent.send(transcript) == ""

    assert [name for name, _ in agent.made] == ["rethink_user_memory", "finish_rethinking_memory"]
    assert agent.human == "Likes tea.\nI live in Paris.\nName: Ada"
