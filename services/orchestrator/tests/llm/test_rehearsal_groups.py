"""The rehearsal in groups: as a member, a supervisor, and a partner that maintains another agent's memory."""

import json

import pytest
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.groups.speakers import NextTurn, turn_input
from mnemesh_orchestrator.model.groups import (
    GroupPlan,
    ManagerConfig,
    ManagerType,
    MemberTurn,
    Speaker,
    TurnOutcome,
)
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.runs import Run
from mnemesh_types.messages import TextPart

from .rehearsal_agent import CORE, EDITOR, OMNI, RETHINK, SEARCH, Agent
from .windows import NOON, tool

FINISH = (tool("memory_finish_edits"),)
PARTNER = EDITOR + FINISH
VOICE = (
    tool("store_memories", ["chunks"], chunks={"type": "array"}),
    tool("rethink_user_memory", ["new_memory"], new_memory="string"),
    tool("finish_rethinking_memory"),
)
ASK_MEMBERS = (tool("send_message_to_all_agents_in_group", ["message"], message="string"),)
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
async def test_manager_selects_the_members_in_order_and_ends_the_round(v2: bool) -> None:
    ada, bob = Speaker(new_id("agent"), "ada"), Speaker(new_id("agent"), "bob", "Likes tea, and names such as ada.")
    namesake = Speaker(new_id("agent"), "Ada")
    config = ManagerConfig(ManagerType.DYNAMIC, manager_agent_id=new_id("agent"), termination_token="OVER AND OUT")
    agent = Agent(v2=v2)

    async def select(members: tuple[Speaker, ...], *said: tuple[Speaker, str], problem: str | None = None) -> str:
        plan = GroupPlan("group", config, members, "boss")
        turns = [
            MemberTurn(number, each.agent_id, TurnOutcome.COMPLETED, (text,))
            for number, (each, text) in enumerate(said, 1)
        ]
        turn = NextTurn(len(turns) + 1, Speaker(config.manager_agent_id or "", "boss"), True, problem)
        run = Run("run-1", "org-1", "user-1", "", "conv-1", NOON, NOON, (InputMessage((TextPart("My name is Eve."),)),))
        parts = [part for item in turn_input(run, plan, turns, turn) for part in item.content]
        return await agent.send(*(part.text for part in parts if isinstance(part, TextPart)))

    assert await select((ada, bob)) == "ada"
    assert await select((ada, bob), (ada, "I ask bob: why?")) == "bob"
    assert await select((ada, bob), (ada, "x"), (bob, "Fine.\n- ada: no")) == "OVER AND OUT"
    assert await select((ada, namesake)) == ada.agent_id, "the name is not unique"
    problem = "ada spoke last, and no member speaks twice in a row."
    assert await select((ada, bob), problem=problem) == "bob", "the turn of ada failed, so it said nothing"
    assert [name for name, _ in agent.made if name != "send_message"] == []


@both_policies
async def test_agent_that_asks_gets_the_answer_that_a_user_would_get(v2: bool) -> None:
    agent = Agent(v2=v2, human="Name: Ada")
    head = "[This message comes from the agent boss (id agent-1), not from the user. It is returned as your reply.]"

    reply = await agent.send(words=[f"{head}\n\nWhat is my name?"])

    assert "Your name is Ada" in reply
    assert "Hello, boss! I have read 1 message from boss.\nboss asked: What is my name?" in reply


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


@both_policies
async def test_supervisor_asks_the_members_and_reports_their_replies(v2: bool) -> None:
    agent = Agent(CORE + SEARCH + ASK_MEMBERS, v2=v2)
    agent.replies = str(
        [
            {"agent_id": "agent-1", "agent_name": "bob", "response": ["It's 4."]},
            {"agent_id": "agent-2", "error": "away"},
        ]
    )

    reply = await agent.send("What is 2 + 2?")

    assert agent.made[0] == ("send_message_to_all_agents_in_group", {"message": "What is 2 + 2?"})
    assert "I asked 2 members:\n- bob: It's 4.\n- agent-2 failed: away" in reply


@pytest.mark.parametrize(
    "tools",
    [EDITOR + FINISH, CORE + FINISH, OMNI + FINISH, EDITOR + RETHINK + FINISH],
    ids=["editor", "core", "omni", "rethink"],
)
@pytest.mark.parametrize("head", ["", REMINDER], ids=["bare", "reminder"])
async def test_partner_writes_what_the_user_stated(tools: tuple, head: str) -> None:
    agent = Agent(tools, human="Likes tea.")
    transcript = (
        'user: {"type": "user_message", "message": "Hi, my name is Ada and I live in Paris.", "time": "2026-01-20"}\n'
        "assistant: <thinking>I live in a computer.</thinking>\nassistant: My name is Sam.\n"
        "user: I like tea. Remember that the launch is on Friday.\nI have two cats!\nuser: Do I have a dog?"
    )

    assert await agent.send(head + transcript) == ""

    lines = [line for line in (agent.human or "").split("\n") if line]
    assert lines == [
        "Likes tea.",
        "Name: Ada",
        "Lives in Paris.",
        "The launch is on Friday.",
        "Has two cats.",
    ]
    assert agent.made[-1][0] == "memory_finish_edits"


async def test_partner_keeps_what_it_knows_and_corrects_what_changed() -> None:
    agent = Agent(PARTNER, human="Name: Ada\nLives in Paris.\nFavourite colour: blue\nlikes tea.")

    await agent.send("user: My name is Ada. I like tea. I live in Paris.")
    assert [name for name, _ in agent.made] == ["memory_finish_edits"]
    await agent.send("user: I live in Rome now. My favourite colour is red. I moved. I live in Oslo.")

    assert agent.human == "Name: Ada\nLives in Oslo.\nFavourite colour: red\nlikes tea."
    assert [name for name, _ in agent.made] == ["memory_replace", "memory_replace", "memory_finish_edits"]


async def test_partner_writes_dates_instead_of_relative_days() -> None:
    agent = Agent(PARTNER)
    message = {"type": "user_message", "message": "Remember that I fly tomorrow.", "time": "2026-01-31 08:00:00 AM"}
    await agent.send(f"user: {json.dumps(message)}")
    assert (agent.human or "").strip() == "Said: I fly on 2026-02-01."


async def test_partner_repeats_a_failed_edit_once() -> None:
    agent = Agent(PARTNER)
    agent.failing = {"memory_insert": "Error: the block is read-only"}
    await agent.send("user: I like tea.")
    assert [name for name, _ in agent.made] == ["memory_insert", "memory_insert", "memory_finish_edits"]


async def test_partner_that_rewrites_the_block_writes_nothing_that_another_partner_wrote() -> None:
    agent = Agent(EDITOR + RETHINK + FINISH, human="Likes tea.")
    agent.refusals = ["Name: Ada\nLikes tea.\nLives in Paris.", "Name: Ada\nLikes tea.\nLives in Paris.\nHas a dog."]

    await agent.send("user: My name is Ada. I live in Paris. I have two cats.")

    assert agent.human == "Name: Ada\nLikes tea.\nLives in Paris.\nHas a dog.\nHas two cats."
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
async def test_voice_partner_stores_older_lines_and_rewrites_the_block(transcript: str) -> None:
    agent = Agent(VOICE, v2=True, human="Likes tea.")

    assert await agent.send(transcript) == ""

    assert [name for name, _ in agent.made] == [
        "store_memories",
        "rethink_user_memory",
        "finish_rethinking_memory",
    ]
    context = "A part of the conversation that began with: I live in Paris."
    assert agent.made[0][1]["chunks"] == [{"start_index": 0, "end_index": 1, "context": context}]
    assert agent.human == "Likes tea.\nLives in Paris.\nName: Ada"
