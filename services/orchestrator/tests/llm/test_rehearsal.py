"""The rehearsal in whole turns: a small loop runs its tools on real state, with both policies."""

import json

import pytest
from mnemesh_orchestrator.llm.port import TextDelta, ToolCallDelta, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.model.models import ToolSchema
from mnemesh_orchestrator.prompt.assembly import heartbeat
from mnemesh_types.messages import Role, TextPart, ToolCall, ToolReturn, ToolStatus

from .rehearsal_agent import CLIENT, CORE, EDITOR, OMNI, REHEARSAL, SEARCH, Agent
from .windows import NOON, ZONE, ask, everything, message, tool

both_policies = pytest.mark.parametrize("v2", [False, True], ids=["V3", "V2"])


@both_policies
async def test_every_reply_starts_with_the_disclaimer(v2: bool) -> None:
    agent = Agent(v2=v2)
    for said in ("Hello!", "My name is Ada.", "What is my name?"):
        first_line = (await agent.send(said)).split("\n")[0]
        assert first_line.startswith("[mnemesh/rehearsal: this is not a language model.")


@both_policies
@pytest.mark.parametrize("tools", [CORE, EDITOR, OMNI], ids=["core", "editor", "omni"])
async def test_name_is_stored_and_changed_with_any_editing_tool(v2: bool, tools: tuple[ToolSchema, ...]) -> None:
    agent = Agent(tools, v2=v2, human="Likes tea.")
    assert "I wrote your name, Ada" in await agent.send("Hi! My name is Ada.")
    assert "Your name is Ada" in await agent.send("what's my name")
    await agent.send("My name is Grace Hopper now, not Ada.")
    assert (agent.human or "").strip().split("\n") == ["Likes tea.", "Name: Grace Hopper"]
    assert "already: Grace Hopper" in await agent.send("My name is Grace Hopper!")
    assert agent.made[:1] == ([] if not v2 else [("send_message", agent.made[0][1])])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Name: Bob", "Name: Ada"),
        ("- name: unknown", "- name: Ada"),
        ("The user's name is Bob.", "The user's name is Ada."),
        ("First name: ?\nAge: 4", "First name: Ada\nAge: 4"),
        ("The human's name is not known yet.", "The human's name is Ada."),
    ],
)
async def test_existing_name_is_replaced(before: str, after: str) -> None:
    agent = Agent(EDITOR, human=before)
    await agent.send("My name is Ada.")
    assert agent.human == after


@both_policies
async def test_several_sentences_run_one_tool_per_step(v2: bool) -> None:
    agent = Agent(v2=v2)
    await agent.send("The sea was calm when I said something about the harbour.")
    reply = await agent.send(
        "My name is Ada. Remember that the key is under the mat; what do you know about the key? "
        "What did I say about the harbour?\nAnd what is my name?"
    )
    assert [name for name, _ in agent.made if name != "send_message"] == [
        "core_memory_append",
        "archival_memory_insert",
        "archival_memory_search",
        "conversation_search",
    ]
    assert agent.archive == ["the key is under the mat"]
    lines = reply.split("\n")
    assert "I wrote your name, Ada" in lines[1]
    assert "I stored this in archival memory: the key is under the mat" in lines[2]
    assert "the key is under the mat" in lines[4]
    assert "The sea was calm when I said something about the harbour." in reply
    assert lines[-1] == "Your name is Ada (from core memory, block human)."


@both_policies
async def test_search_replies_contain_results(v2: bool) -> None:
    agent = Agent(v2=v2)
    assert "In archival memory I find about cats: nothing." in await agent.send("What do you know about cats?")
    assert "I find about cats: nothing." in await agent.send("What did I say about cats?")
    await agent.send("Please remember: cats sleep 16 hours")
    assert "cats sleep 16 hours" in await agent.send("what do you know about cats")
    assert "Please remember: cats sleep 16 hours" in await agent.send("What did I tell you about cats?!")


@pytest.mark.parametrize(
    ("fact", "question", "topic"),
    [
        ("the launch is on Friday", "When is the launch?", "the launch"),
        ("the key is under the mat", "Hi! Please, where's the key?", "the key"),
        ("the shop opens at nine", "when does the shop open?", "the shop open"),
    ],
)
async def test_questions_about_time_and_place_search_archival_memory(fact: str, question: str, topic: str) -> None:
    agent = Agent()
    await agent.send(f"Remember that {fact}.")
    assert fact in await agent.send(question)
    assert agent.made[-1] == ("archival_memory_search", {"query": topic})
    assert "I understand only these sentences" in await agent.send("Where are you?")


async def test_search_is_limited_to_user_messages() -> None:
    agent = Agent()
    await agent.send("What did I say about cats?")
    assert agent.made == [("conversation_search", {"query": "cats", "roles": ["user"]})]


@both_policies
async def test_failed_tool_is_reported_and_not_retried(v2: bool) -> None:
    agent = Agent(v2=v2)
    agent.failing = {"core_memory_append": "Error: the block is read-only", "archival_memory_insert": "Error: away"}
    reply = await agent.send("My name is Ada. Remember that it rains.")
    assert "core_memory_append failed: Error: the block is read-only" in reply
    assert "archival_memory_insert failed: Error: away" in reply
    assert [name for name, _ in agent.made if name != "send_message"] == [
        "core_memory_append",
        "archival_memory_insert",
    ]


@both_policies
async def test_missing_tools_and_blocks_are_reported(v2: bool) -> None:
    agent = Agent((), v2=v2)
    reply = await agent.send(
        "My name is Ada. Remember that it rains. What did I say about it? What do you know about it? Who am I?"
    )
    assert "none of my tools can edit core memory" in reply
    assert reply.count("is not attached to this agent") == 3
    assert "I do not know your name" in reply
    agent = Agent(v2=v2)
    agent.human = None
    assert "this agent has no block human" in await agent.send("My name is Ada.")


@both_policies
async def test_other_text_gets_help(v2: bool) -> None:
    reply = await Agent(v2=v2).send("How is the weather on Mars?")
    assert "I understand only these sentences" in reply
    assert "OPENAI_API_KEY" in reply


async def test_consecutive_user_messages_are_one_turn() -> None:
    agent = Agent()
    reply = await agent.send("My name is Ada.", "Remember that it rains.")
    assert [name for name, _ in agent.made] == ["core_memory_append", "archival_memory_insert"]
    assert "Ada" in reply


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("my name is ada", "ada"),
        ("MY NAME IS ADA!!!", "ADA"),
        ("My name’s Zoë.", "Zoë"),
        ("Hello there, my name is Jean-Luc O'Neill-Þórsson, nice to meet you", "Jean-Luc O'Neill-Þórsson"),
        ("my name is 王小明。", "王小明"),
        ("My name is J. R. R. Tolkien. I write.", "J. R. R. Tolkien"),
        ('My name is "Ada Lovelace".', "Ada Lovelace"),
        ("Call me Ishmael.", "Ishmael"),
        ("My name is Ada and I like tea", "Ada"),
        ("Hi\nmy name is\tAda \nBye", "Ada"),
        ("My name is Анна, please call back", "Анна"),
    ],
)
async def test_names_in_many_forms(said: str, name: str) -> None:
    agent = Agent()
    await agent.send(said)
    assert agent.human == f"\nName: {name}"


@pytest.mark.parametrize("said", ["My name is not important.", "My name is ...", "What is my name?", "my name is"])
async def test_texts_without_a_name(said: str) -> None:
    agent = Agent()
    await agent.send(said)
    assert agent.human == ""


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ("Remember that I like 3.5 sugars.", "I like 3.5 sugars."),
        ("could you remember that my bike is red?", None),
        ("Don't forget that Bob's birthday is May 4", "Bob's birthday is May 4"),
        ("Hey, please remember this: it rains;", "it rains"),
        ("Do you remember that day?", None),
    ],
)
async def test_text_to_remember(said: str, stored: str | None) -> None:
    agent = Agent()
    await agent.send(said)
    assert agent.archive[:1] == ([] if stored is None else [stored])


async def test_forced_tool_is_called_with_valid_arguments() -> None:
    forced = ToolChoice(ToolChoiceKind.NAMED, "start")
    offered = tool(
        "start", ["mode", "count", "deep"], mode={"type": "string", "enum": ["a"]}, count="integer", deep="object"
    )
    request = ask(REHEARSAL, message(1, Role.USER, "Hi"), tools=(offered,), tool_choice=forced)
    _, answer = await everything(CLIENT, request)
    assert json.loads(answer.tool_calls[0].arguments) == {"mode": "a", "count": 1, "deep": {}}


async def test_required_tool_is_called_once_before_the_turn_ends() -> None:
    alert = heartbeat("ToolRuleViolated: You must call finish, report at least once to exit the loop.", NOON, ZONE)
    window = [
        message(1, Role.USER, "Hi"),
        message(2, Role.ASSISTANT, "Reply."),
        message(3, Role.USER, alert, is_event=True),
    ]
    tools = (tool("finish"), tool("report", ["text"], text="string"))
    for number, expected in ((4, "finish"), (6, "report")):
        _, answer = await everything(CLIENT, ask(REHEARSAL, *window, tools=tools))
        call = answer.tool_calls[0]
        assert call.name == expected
        tool_call = ToolCall(f"c{number}", call.name, call.arguments)
        window.append(message(number, Role.ASSISTANT, tool_calls=(tool_call,)))
        done = ToolReturn.from_text(tool_call.id, call.name, ToolStatus.SUCCESS, "ok")
        window.append(message(number + 1, Role.TOOL, tool_returns=(done,)))
    _, answer = await everything(CLIENT, ask(REHEARSAL, *window, tools=tools))
    assert answer.tool_calls == ()


async def test_answer_is_streamed_counted_and_deterministic() -> None:
    request = ask(REHEARSAL, message(1, Role.USER, "Hi"))
    events, answer = await everything(CLIENT, request)
    assert len(events) > 3
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "".join(
        part.text for part in answer.content if isinstance(part, TextPart)
    )
    assert (events, answer) == await everything(CLIENT, request)
    assert answer.usage.total_tokens == (answer.usage.prompt_tokens or 0) + (answer.usage.completion_tokens or 0)
    request = ask(REHEARSAL, message(1, Role.USER, "Remember that it rains."), tools=SEARCH)
    events, answer = await everything(CLIENT, request)
    streamed = "".join(event.arguments for event in events if isinstance(event, ToolCallDelta))
    assert streamed == answer.tool_calls[0].arguments == '{"content": "it rains."}'
