"""Tool rules in turns: allowed, forced, prefilled and refused calls."""

import json

import pytest
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.rules import (
    ChildArguments,
    Conditional,
    ConditionalOutcome,
    ConstrainChildTools,
    ExitLoop,
    ParentLastTool,
    RequiresApproval,
    RunFirst,
    ToolRule,
)
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ToolStatus

from ..support.model import call, say, together
from ..support.world import Process, World, lines, require_valid


async def with_tools(world: World, process: Process, *rules: ToolRule, **results: str) -> Agent:
    """Creates an agent of the plain loop whose custom tools return the given texts."""
    for name, result in results.items():
        world.tools.add(name, result)
    return await world.agent(
        process, include_base_tools=False, tool_names=tuple(results), tool_rules=rules, model_settings=ModelSettings()
    )


def offered(request: LlmRequest) -> list[str]:
    return [tool.name for tool in request.tools]


async def test_first_tool_is_the_only_one_offered_and_forced_by_name(world: World, process: Process) -> None:
    agent = await with_tools(world, process, RunFirst("look"), look="seen", act="done")
    world.model.follow(call("look"), say("Done."))
    await process.send(agent)
    first, second = world.model.requests
    assert offered(first) == ["look"]
    assert (first.tool_choice.kind, first.tool_choice.name) == (ToolChoiceKind.NAMED, "look")
    assert offered(second) == ["look", "act"]
    assert second.tool_choice.kind is ToolChoiceKind.AUTO


async def test_of_several_first_tools_one_is_required(world: World, process: Process) -> None:
    agent = await with_tools(world, process, RunFirst("look"), RunFirst("act"), look="seen", act="done", rest="")
    world.model.follow(call("act"), say("Done."))
    await process.send(agent)
    assert offered(world.model.requests[0]) == ["look", "act"]
    assert world.model.requests[0].tool_choice.kind is ToolChoiceKind.REQUIRED


async def test_first_tool_with_unreadable_arguments_must_still_run_first(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_rules=(RunFirst("archival_memory_insert"),))
    world.model.follow(call("archival_memory_insert"), call("archival_memory_insert", content="x"), say("Done."))
    await process.send(agent)
    assert offered(world.model.requests[1]) == ["archival_memory_insert"]
    assert await world.archival.texts(agent.id) == ["x"]


async def test_call_of_an_unknown_tool_does_not_lift_a_parent_rule(world: World, process: Process) -> None:
    agent = await with_tools(world, process, ConstrainChildTools("look", ("act",)), look="seen", act="done", rest="")
    world.model.follow(call("look"), call("dream"), call("act"), say("Done."))
    await process.send(agent)
    assert offered(world.model.requests[2]) == ["act"]


async def test_prefilled_arguments_override_those_of_the_model(world: World, process: Process) -> None:
    agent = await with_tools(world, process, RunFirst("look", '{"n": 7}'), look="seen")
    world.model.follow(call("look", n=1), call("look", n=1), say("Done."))
    await process.send(agent)
    assert world.tools.executed == [("look", {"n": 7}), ("look", {"n": 1})]
    stored = [json.loads(created.arguments) for message in world.turn(agent) for created in message.tool_calls]
    assert stored == [{"n": 7}, {"n": 1}]


async def test_prefilled_argument_may_be_missing_in_the_call(world: World, process: Process) -> None:
    agent = await world.agent(
        process, tool_rules=(RunFirst("archival_memory_insert", '{"content": "by rule", "tags": ["t"]}'),)
    )
    world.model.follow(call("archival_memory_insert"), say("Done."))
    await process.send(agent)
    assert await world.archival.texts(agent.id) == ["by rule"]


async def test_child_is_prefilled_right_after_its_parent(world: World, process: Process) -> None:
    rule = ConstrainChildTools("look", ("act",), (ChildArguments("act", '{"n": 2}'),))
    agent = await with_tools(world, process, rule, look="seen", act="done")
    world.model.follow(call("look"), call("act"), call("act"), say("Done."))
    await process.send(agent)
    assert world.tools.executed == [("look", {}), ("act", {"n": 2}), ("act", {})]


OF_FIRST, OF_CHILD = "InitToolRule(look)", "ChildToolRule(look->act)"


@pytest.mark.parametrize(
    ("first", "child", "problem"),
    [
        ('{"n": "many"}', None, f"the rule {OF_FIRST} prefills the argument n, but n must be an integer, not a string"),
        (
            '{"n": 1, "unknown": 1}',
            None,
            f"the rule {OF_FIRST} prefills the argument unknown, but look has no argument unknown (its arguments: n)",
        ),
        (None, '{"n": [2]}', f"the rule {OF_CHILD} prefills the argument n, but n must be an integer, not a list"),
        (
            None,
            '{"far": true}',
            f"the rule {OF_CHILD} prefills the argument far, but act has no argument far (its arguments: n)",
        ),
    ],
)
async def test_invalid_prefilled_argument_stops_the_run(
    world: World, process: Process, first: str | None, child: str | None, problem: str
) -> None:
    rules: list[ToolRule] = [RunFirst("look", first)]
    if child is not None:
        rules.append(ConstrainChildTools("look", ("act",), (ChildArguments("act", child),)))
    agent = await with_tools(world, process, *rules, look="seen", act="done")
    world.model.follow(call("look", n=1), call("act", n=1))
    await process.send(agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.INVALID_TOOL_CALL, RunStatus.FAILED)
    assert run.error is not None
    assert (run.error.reason, run.error.message) == ("FAILED_PRECONDITION", f"{problem}. The tool was not run.")
    assert [name for name, _ in world.tools.executed] == ([] if child is None else ["look"])
    window = world.window(agent).messages
    require_valid(window)
    assert lines(window)[-1] == f"tool error of {'look' if child is None else 'act'}: Error: {run.error.message}"


@pytest.mark.parametrize(
    ("returned", "leads_to"), [("true", "yes"), ("5", "five"), ("1.5", "half"), ("x", "text"), ("else", "other")]
)
async def test_output_of_a_conditional_tool_selects_the_next_tool(
    world: World, process: Process, returned: str, leads_to: str
) -> None:
    outcomes = (
        ConditionalOutcome(True, "yes"),
        ConditionalOutcome(5, "five"),
        ConditionalOutcome(1.5, "half"),
        ConditionalOutcome("x", "text"),
    )
    rule = Conditional("ask", outcomes, default_child="other")
    agent = await with_tools(world, process, rule, ask=returned, yes="", five="", half="", text="", other="")
    world.model.follow(call("ask"), call(leads_to), say("Done."))
    await process.send(agent)
    assert offered(world.model.requests[1]) == [leads_to]
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_unmapped_output_of_a_strict_rule_fails_the_run_and_keeps_the_step(
    world: World, process: Process
) -> None:
    rule = Conditional("ask", (ConditionalOutcome("x", "act"),), require_output_mapping=True)
    agent = await with_tools(world, process, rule, ask="y", act="")
    world.model.follow(call("ask"))
    await process.send(agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.ERROR, RunStatus.FAILED)
    assert run.error is not None
    assert "ask returned 'y'" in run.error.message
    assert lines(world.turn(agent))[-1] == "tool success of ask: y"


async def test_children_of_a_last_tool_are_hidden_until_then(world: World, process: Process) -> None:
    agent = await with_tools(world, process, ParentLastTool("look", ("act",)), look="seen", act="", rest="")
    world.model.follow(call("look"), call("act"), say("Done."))
    await process.send(agent)
    assert [offered(request) for request in world.model.requests] == [["look", "rest"], ["act"], ["look", "rest"]]


async def test_refused_call_returns_the_reason_and_the_turn_continues(world: World, process: Process) -> None:
    agent = await with_tools(world, process, ConstrainChildTools("look", ("act",)), look="seen", act="", rest="")
    world.model.follow(call("look"), call("rest"), call("act"), say("Done."))
    await process.send(agent)
    assert [name for name, _ in world.tools.executed] == ["look", "act"]
    refused = world.turn(agent)[4].tool_returns[0]
    assert refused.status is ToolStatus.ERROR
    assert refused.text == (
        "[ToolConstraintError] Cannot call rest, valid tools include: ['act'].\n"
        "** Hint: Possible rules that were violated:\n"
        "\t- After using look, you must use one of these tools: act"
    )


async def test_rules_disable_parallel_calls_and_order_those_that_arrive(world: World, process: Process) -> None:
    for name in ("look", "act"):
        world.tools.add(name, parallel=True)
    agent = await world.agent(
        process,
        include_base_tools=False,
        tool_names=("look", "act"),
        tool_rules=(ConstrainChildTools("look", ("act",)),),
        model_settings=ModelSettings(parallel_tool_calls=True),
    )
    world.model.follow(together(call("look"), call("look"), call("act")), say("Done."))
    await process.send(agent)
    assert not world.model.requests[0].parallel_tool_calls
    assert [name for name, _ in world.tools.executed] == ["look", "act"]
    assert [item.status for item in world.turn(agent)[2].tool_returns] == ["success", "error", "success"]


@pytest.mark.parametrize("by_rule", [True, False])
async def test_tool_that_needs_approval_does_not_run_without_it(
    world: World, process: Process, *, by_rule: bool
) -> None:
    world.tools.add("launch", requires_approval=not by_rule)
    rules = (RequiresApproval("launch"),) if by_rule else ()
    agent = await world.agent(process, tool_names=("launch",), tool_rules=rules)
    world.model.follow(call("launch"))
    await process.send(agent)
    assert world.tools.executed == []
    assert (await process.outcome(agent)).stop_reason is StopReason.REQUIRES_APPROVAL


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_calls_after_one_that_ends_the_turn_do_not_run(world: World, process: Process, kind: AgentType) -> None:
    rules = (ExitLoop("conversation_search"),)
    agent = await world.agent(process, kind, tool_rules=rules, include_base_tool_rules=False)
    insert = call("archival_memory_insert", content="tea")
    world.model.follow(together(insert, call("conversation_search", query="x"), insert, call("nothing")))
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.status is RunStatus.COMPLETED
    returns = world.turn(agent)[-1].tool_returns
    assert [item.status for item in returns] == [ToolStatus.SUCCESS] * 2 + [ToolStatus.ERROR] * 2
    assert "was not run, because conversation_search had ended the turn" in returns[2].text
    assert await world.archival.texts(agent.id) == ["tea"]
    require_valid(world.window(agent).messages)


async def test_failed_exit_does_not_end_the_turn(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_rules=(ExitLoop("memory_insert"),))
    fails = call("memory_insert", label="nowhere", new_str="x")
    world.model.follow(together(fails, call("archival_memory_insert", content="tea")), say("Done."))
    await process.send(agent)
    assert await world.archival.texts(agent.id) == ["tea"]
    assert lines(world.turn(agent))[-1] == "assistant text: Done."
