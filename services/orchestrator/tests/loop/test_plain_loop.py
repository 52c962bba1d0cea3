"""V3: plain text ends a turn, and a tool call continues it."""

from dataclasses import replace

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.port import FinishReason
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.rules import ExitLoop, RequiredBeforeExit
from mnemesh_orchestrator.model.runs import RunStatus, StepFilter, StopReason
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ImagePart, TextPart, ToolStatus

from ..support.model import call, raw_call, say, together
from ..support.world import ME, Process, World, kinds, lines, require_valid


async def test_text_ends_the_turn(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello yourself.", thought="A greeting."))
    events = await process.send(agent, "Hello")
    assert kinds(events) == ["reasoning", "assistant", "StopEvent", "UsageEvent"]
    assert lines(world.turn(agent)) == [
        "user text: Hello",
        "assistant thought: A greeting.",
        "assistant text: Hello yourself.",
    ]
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status, run.step_count) == (StopReason.END_TURN, RunStatus.COMPLETED, 1)
    assert (run.usage.prompt_tokens, run.usage.completion_tokens, run.usage.total_tokens) == (100, 10, 110)
    assert (await process.agents.get(ME, agent.id)).last_stop_reason == "end_turn"


async def test_empty_text_before_an_image_is_left_out(world: World, process: Process) -> None:
    agent, image = await world.agent(process), ImagePart(b"a picture", "image/png")
    world.model.follow(say("A picture."))
    await process.send_all(agent, [InputMessage((TextPart(""), image))])
    assert world.turn(agent)[0].content == (image,)
    for content in ((TextPart(""),), (TextPart(""), TextPart(""))):
        with pytest.raises(InvalidArgument) as refused:
            await process.send_all(agent, [InputMessage(content)])
        assert refused.value.field == "messages[0].content[0]"


async def test_turn_continues_after_every_tool_until_plain_text(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(
        call("archival_memory_insert", content="Ada likes tea."),
        call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada"),
        call("archival_memory_search", query="tea"),
        say("Noted."),
    )
    events = await process.send(agent, "I am Ada, and I like tea.")
    assert kinds(events) == ["tool_call", "tool_return"] * 3 + ["assistant", "StopEvent", "UsageEvent"]
    assert await world.archival.texts(agent.id) == ["Ada likes tea."]
    assert world.blocks.value(agent.id, "human") == "Ada"
    turn = lines(world.turn(agent))
    assert turn[:3] == [
        "user text: I am Ada, and I like tea.",
        'assistant calls archival_memory_insert{"content": "Ada likes tea."}',
        "tool success of archival_memory_insert: ",
    ]
    assert [line.partition(":")[0] for line in turn[3:]] == [
        'assistant calls memory_replace{"label"',
        "tool success of memory_replace",
        'assistant calls archival_memory_search{"query"',
        "tool success of archival_memory_search",
        "assistant text",
    ]
    require_valid(world.window(agent).messages)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.step_count, run.usage.total_tokens) == (StopReason.END_TURN, 4, 440)


async def test_repeated_call_ids_of_a_provider_lose_nothing(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(
        call("archival_memory_insert", content="one"), call("archival_memory_insert", content="two"), say("Done.")
    )
    await process.send(agent)
    assert await world.archival.texts(agent.id) == ["one", "two"]
    calls = [created for message in world.turn(agent) for created in message.tool_calls]
    assert {created.provider_id for created in calls} == {"call_1"}
    assert len({created.id for created in calls}) == 2
    require_valid(world.window(agent).messages)


async def test_calls_of_an_answer_are_one_message_and_their_returns_are_in_order(
    world: World, process: Process
) -> None:
    for name in ("slow", "quick"):
        world.tools.add(name, f"{name} is done", parallel=True)
    agent = await world.agent(
        process, tool_names=("slow", "quick"), model_settings=ModelSettings(parallel_tool_calls=True)
    )
    world.model.follow(together(call("slow"), call("quick"), call("slow"), text="Both at once."), say("Done."))
    events = await process.send(agent)
    assert world.model.requests[0].parallel_tool_calls
    assert lines(world.turn(agent)) == [
        "user text: Hello",
        "assistant text: Both at once.",
        "assistant calls slow{}",
        "assistant calls quick{}",
        "assistant calls slow{}",
        "tool success of slow: slow is done",
        "tool success of quick: quick is done",
        "tool success of slow: slow is done",
        "assistant text: Done.",
    ]
    require_valid(world.window(agent).messages)
    assert kinds(events)[:2] == ["assistant", "tool_call"]
    assert kinds(events).count("tool_return") == 3


async def test_arguments_that_are_not_json_are_an_error_return(world: World, process: Process) -> None:
    world.tools.add("probe")
    agent = await world.agent(process, tool_names=("probe",))
    world.model.follow(raw_call("probe", '{"n": 1'), say("I give up."))
    await process.send(agent)
    assert world.tools.executed == []
    returned = world.turn(agent)[2].tool_returns[0]
    assert returned.status is ToolStatus.ERROR
    assert returned.text.startswith("Error: the arguments are not a JSON object")
    assert world.turn(agent)[1].tool_calls[0].arguments == '{"unreadable_arguments": "{\\"n\\": 1"}'


async def test_missing_tool_is_an_error_return(world: World, process: Process) -> None:
    agent = await world.agent(process, include_base_tools=False, tool_names=("memory_insert",))
    world.model.follow(call("make_coffee"), say("I cannot."))
    await process.send(agent)
    assert lines(world.turn(agent))[2] == (
        "tool error of make_coffee: Error: there is no tool make_coffee (the tools: memory_insert)."
    )


async def test_empty_answer_fails_the_run_and_nothing_is_stored(world: World, process: Process) -> None:
    agent = await world.agent(process)
    before = world.window(agent)
    world.model.follow(say(""), say(""), say("Yes."))
    events = await process.send(agent, "Anything to say?")
    assert kinds(events) == ["ErrorEvent", "StopEvent", "UsageEvent"]
    failed = await process.outcome(agent)
    assert (failed.stop_reason, failed.status) == (StopReason.INVALID_LLM_RESPONSE, RunStatus.FAILED)
    assert failed.usage.total_tokens == 220
    assert world.window(agent).messages == before.messages
    await process.follow(await process.runs.retry(ME, None, failed.id))
    assert lines(world.turn(agent)) == ["user text: Anything to say?", "assistant text: Yes."]


async def test_empty_answers_after_tools_fail_the_run_and_the_effects_of_the_tools_are_kept(
    world: World, process: Process
) -> None:
    agent = await world.agent(process)
    world.model.follow(call("archival_memory_insert", content="Ada likes tea."), say(""), say("", thought="Done."))
    events = await process.send(agent, "Note that Ada likes tea.")
    assert kinds(events) == ["tool_call", "tool_return", "ErrorEvent", "StopEvent", "UsageEvent"]
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.INVALID_LLM_RESPONSE, RunStatus.FAILED)
    assert lines(world.turn(agent))[-1] == "tool success of archival_memory_insert: "
    require_valid(world.window(agent).messages)


async def test_a_silent_answer_is_asked_again_once_and_its_error_says_what_it_had(
    world: World, process: Process
) -> None:
    agent = await world.agent(process)
    thoughts = say("  \n", thought="Hm.")
    world.model.follow(thoughts, say("Yes."), thoughts, replace(say(""), finish_word="MALFORMED_FUNCTION_CALL"))
    await process.send(agent, "Anything to say?")
    assert lines(world.turn(agent))[-1] == "assistant text: Yes."
    await process.send(agent, "And now?")
    error = (await process.outcome(agent)).error
    assert error is not None
    assert error.reason == "PROVIDER_BAD_ANSWER"
    assert "MALFORMED_FUNCTION_CALL" in error.message
    assert (error.metadata["answer"], error.metadata["finish_reason"]) == ("empty", "MALFORMED_FUNCTION_CALL")


async def test_a_turn_whose_words_a_tool_has_sent_may_end_silently(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_names=("send_message",))
    world.model.follow(call("send_message", message="Hello."), say(""))
    await process.send(agent)
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_text_cut_at_the_output_limit_fails_the_run_and_is_stored(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Once upon a", finish=FinishReason.LENGTH))
    await process.send(agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.MAX_TOKENS_EXCEEDED, RunStatus.FAILED)
    assert run.error is not None
    assert "max_output_tokens" in run.error.message
    assert lines(world.turn(agent))[-1] == "assistant text: Once upon a"


async def test_endless_chain_stops_at_max_steps(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.script = lambda _: call("archival_memory_insert", content="again")
    events = await process.send(agent, max_steps=3)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status, run.step_count) == (StopReason.MAX_STEPS, RunStatus.COMPLETED, 3)
    assert len(world.model.requests) == 3
    assert kinds(events).count("tool_return") == 3
    require_valid(world.window(agent).messages)


async def test_terminal_tool_ends_the_turn(world: World, process: Process) -> None:
    world.tools.add("hand_over")
    agent = await world.agent(process, tool_names=("hand_over",), tool_rules=(ExitLoop("hand_over"),))
    world.model.follow(call("hand_over"))
    await process.send(agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.TOOL_RULE, RunStatus.COMPLETED)


async def test_terminal_tool_that_failed_does_not_end_the_turn(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_rules=(ExitLoop("memory_replace"),))
    world.model.follow(call("memory_replace", label="human", old_str="x", new_str="y"), say("It is not there."))
    await process.send(agent)
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert lines(world.turn(agent))[-1] == "assistant text: It is not there."


async def test_text_does_not_end_a_turn_before_its_required_tool(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_rules=(RequiredBeforeExit("archival_memory_insert"),))
    world.model.follow(say("Done?"), call("archival_memory_insert", content="kept"), say("Done."))
    events = await process.send(agent)
    transcript = lines(world.turn(agent))
    assert transcript[1] == "assistant text: Done?"
    assert "ToolRuleViolated: You must call archival_memory_insert at least once to exit the loop." in transcript[2]
    assert '"type": "heartbeat"' in transcript[2]
    assert transcript[-1] == "assistant text: Done."
    assert kinds(events) == ["assistant", "tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_refused_call_does_not_satisfy_a_required_tool(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_rules=(RequiredBeforeExit("archival_memory_insert"),))
    world.model.follow(
        call("archival_memory_insert"), say("Done?"), call("archival_memory_insert", content="kept"), say("Done.")
    )
    await process.send(agent)
    assert await world.archival.texts(agent.id) == ["kept"]
    assert lines(world.turn(agent))[-1] == "assistant text: Done."


async def test_turns_share_one_window(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("One."), say("Two."))
    await process.send(agent, "First")
    await process.send(agent, "Second")
    assert [message.text for message in world.model.last.messages[1:]] == ["First", "One.", "Second"]
    assert lines(world.turn(agent)) == [
        "user text: First",
        "assistant text: One.",
        "user text: Second",
        "assistant text: Two.",
    ]


async def test_steps_are_recorded_with_their_usage(world: World, process: Process) -> None:
    async def time_passes(_: str) -> None:
        world.clock.advance(0.25)

    world.faults.on_call = time_passes
    agent = await world.agent(process)
    world.model.follow(call("archival_memory_insert", content="x"), say("Done."))
    await process.send(agent)
    run = await process.outcome(agent)
    page = await process.steps.list(ME, StepFilter(run_id=run.id), PageQuery(10, ascending=True))
    assert [(step.number, step.stop_reason, step.usage.total_tokens, step.attempts) for step in page.items] == [
        (1, None, 110, 1),
        (2, StopReason.END_TURN, 110, 1),
    ]
    assert await process.steps.get(ME, page.items[0].id) == page.items[0]
    assert {message.step_id for message in world.turn(agent)} == {step.id for step in page.items}


@pytest.mark.parametrize("name", ["conversation_search", "archival_memory_search"])
async def test_search_without_results_is_a_successful_return(world: World, process: Process, name: str) -> None:
    agent = await world.agent(process)
    world.model.follow(call(name, query="nothing like it"), say("Nothing."))
    await process.send(agent)
    assert world.turn(agent)[2].tool_returns[0].status is ToolStatus.SUCCESS
