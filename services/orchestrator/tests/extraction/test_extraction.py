"""Facts that are extracted after turns and on demand."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.errors import Aborted, InvalidArgument, NotFound, Unavailable
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderBadAnswer, ProviderUnavailable
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.episodes import Change, MemoryExtractionSettings
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.usecases.memory_extractions import MAX_UNREADABLE
from mnemesh_testkit.fakes.fake_summarizer import extract_memories
from mnemesh_types.agents import CompactionSettings, ExtractionMode, ExtractionScope
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.usage import Usage

from ..support.faults import Crash, Faults
from ..support.model import Item, call, say
from ..support.world import ME, Process, World, opened

PER_TURN = MemoryExtractionSettings(ExtractionMode.PER_TURN)
BY_SENDER = MemoryExtractionSettings(ExtractionMode.PER_TURN, scope=ExtractionScope.SENDER)
ANA, BO = new_id("identity"), new_id("identity")


class Mind:
    """Answers turns with "Yes.", and extracts what users ask to remember."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: list[Item] = []
        """Answers to requests for facts, before those that follow the rule."""
        self.turn: Item | None = None
        world.model.script = self

    def __call__(self, request: LlmRequest) -> Item:
        if not request.is_verbatim:
            turn, self.turn = self.turn, None
            return turn or say("Yes.")
        if self.answers:
            return self.answers.pop(0)
        return facts(extract_memories(request.messages[-1].text)["facts"])

    @property
    def asked(self) -> list[str]:
        """The material of every request for facts."""
        return [request.messages[1].text for request in self.world.model.requests if request.is_verbatim]


def facts(items: Sequence[dict[str, Any]]) -> LlmAnswer:
    return say(json.dumps({"facts": items}))


@pytest.fixture
def mind(world: World) -> Mind:
    """The world's model."""
    return Mind(world)


async def learner(world: World, process: Process, settings: MemoryExtractionSettings | None = PER_TURN) -> Agent:
    return await world.agent(process, initial_messages=(), memory_extraction=settings)


async def say_as(process: Process, agent: Agent, sender_id: str, text: str) -> None:
    await process.send_all(agent, [InputMessage((TextPart(text),), sender_id=sender_id)])


async def run_due(process: Process) -> None:
    await process.orchestrator.extractions.run_due()


async def test_facts_are_extracted_after_every_second_turn(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process, MemoryExtractionSettings(ExtractionMode.PER_TURN, frequency=2))
    await process.send(agent, "Remember: the boat is red.")
    await run_due(process)
    assert mind.asked == []
    await process.send(agent, "Hello.")
    await run_due(process)
    assert world.episodes.texts(agent.id) == ["the boat is red."]
    (sources,) = world.episodes.sources.values()
    assert sources == [world.window(agent).messages[1].id]
    world.clock.advance(3_600)
    await run_due(process)
    assert len(mind.asked) == 1
    assert not await process.stores.extractions.due("another", 10)
    await process.send(agent, "Remember: the boat is blue.")
    await process.send(agent, "Hello.")
    await run_due(process)
    assert world.episodes.texts(agent.id) == ["the boat is blue."]
    assert world.episodes.closed_texts() == {"the boat is red.": "the boat is blue."}
    assert "[f1] the boat is red." in mind.asked[1]
    assert "Just before:\nuser: Remember: the boat is red." in mind.asked[1]
    assert mind.asked[1].count("[m") == 4


async def test_agent_without_the_setting_pays_nothing(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process, None)
    await process.send(agent, "Remember: the boat is red.")
    await run_due(process)
    assert mind.asked == []
    assert not [name for name in world.faults.calls if name.startswith("extractions.") and name != "extractions.due"]
    # On demand it works for every agent.
    report = await process.orchestrator.extractions.extract(ME, agent.id, 0)
    assert (report.messages, report.calls, report.count(Change.ADD), report.has_more) == (3, 1, 1, False)
    assert world.episodes.texts(agent.id) == ["the boat is red."]
    again = await process.orchestrator.extractions.extract(ME, agent.id, 0)
    assert (again.messages, again.calls) == (0, 0)


async def test_imported_messages_of_no_conversation_are_extracted(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process, None)
    texts = ("Remember: the boat is red.", "Remember: the car is blue.")
    messages = [Message(new_id("message"), Role.USER, world.clock.now(), (TextPart(text),)) for text in texts]
    await world.recall.append(new_id("request"), agent.id, messages)
    report = await process.orchestrator.extractions.extract(ME, agent.id, 0)
    assert (report.calls, report.count(Change.ADD)) == (1, 2)
    assert world.episodes.texts(agent.id) == ["the boat is red.", "the car is blue."]


async def test_unusable_answers_are_returned_and_their_usable_part_is_kept(
    world: World, process: Process, mind: Mind
) -> None:
    agent = await learner(world, process)
    await process.send(agent, "The boat is red and the car is blue. My password is hunter2!x.")
    fact = {"tags": [], "confidence": 2.0, "salience": 0.5, "messages": ["m1"], "relation": "new", "known_fact": None}
    items = [
        {**fact, "text": "The boat is red."},
        {**fact, "text": "the boat is RED"},
        {**fact, "text": "Invented.", "messages": ["m9"]},
        {**fact, "text": "Withdrawn.", "relation": "retracts", "known_fact": "f7"},
        {**fact, "text": "The password is hunter2!x."},
        {**fact, "text": "  "},
        {"text": "Incomplete."},
    ]
    mind.answers = [say("no JSON"), say('{"facts": 1}'), facts(items)]
    await run_due(process)
    assert len(mind.asked) == 3
    assert world.episodes.texts(agent.id) == ["The boat is red."]
    # The same words are no contradiction, whatever the model says of them.
    await process.send(agent, "The boat is red.")
    mind.answers = [
        facts([{**fact, "confidence": 1, "text": "The boat is red!", "relation": "contradicts", "known_fact": "f1"}])
    ]
    await run_due(process)
    assert world.episodes.closed == {}
    assert [len(ids) for ids in world.episodes.sources.values()] == [2]


async def test_unreadable_answers_leave_the_messages_open_and_are_visible(
    world: World, process: Process, mind: Mind
) -> None:
    agent = await learner(world, process)
    await process.send(agent, "Remember: the boat is red.")
    extractions, outcomes = process.orchestrator.extractions, process.orchestrator.metrics.extractions
    for _ in range(MAX_UNREADABLE):
        mind.answers = [say("I found {nothing} that I could write down.")] * 3
        await run_due(process)
        world.clock.advance(3_600)
    asked = len(mind.asked)
    assert asked == 3 * MAX_UNREADABLE
    await run_due(process)
    assert len(mind.asked) == asked, "it is asked again without end"
    assert outcomes.value("unreadable") == MAX_UNREADABLE
    mind.answers = [say("no JSON")] * 3
    with pytest.raises(ProviderBadAnswer, match="no facts that can be read"):
        await extractions.extract(ME, agent.id, 0)
    # The messages were not processed, so that a later answer has their facts.
    report = await extractions.extract(ME, agent.id, 0)
    assert report.messages
    assert world.episodes.texts(agent.id) == ["the boat is red."]


async def test_readable_facts_of_a_wrapped_answer_cost_one_call(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process)
    await process.send(agent, "The boat is red.")
    mind.answers = [
        say(
            'From the messages {user: m1} I extract this: {"facts":[{"text":"The boat is red.","tags":null,'
            '"confidence":"0.9","salience":0.5,"messages":["m1"],"relation":"new","known_fact":null}]}'
        )
    ]
    await run_due(process)
    assert len(mind.asked) == 1
    assert world.episodes.texts(agent.id) == ["The boat is red."]


async def test_facts_of_one_user_are_not_found_by_another(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process, BY_SENDER)
    await say_as(process, agent, ANA, "Remember: the salary of Ana is 5000.")
    await say_as(process, agent, BO, "Remember: the dog of Bo is Rex.")
    await process.send(agent, "Remember: the office is closed.")
    await run_due(process)
    found = world.episodes.in_scope
    assert found(identity_id=ANA) == ["the salary of Ana is 5000."]
    assert found(identity_id=BO) == ["the dog of Bo is Rex."]
    assert found(conversation_id=agent.default_conversation_id) == ["the office is closed."]
    assert found(agent_id=agent.id) == []
    assert not any("Ana" in asked and "Bo" in asked for asked in mind.asked)
    for sender, own, other in ((ANA, "5000", "Rex"), (BO, "Rex", "5000")):
        mind.turn = call("episodic_memory_search", query="salary of Ana, dog of Bo, office")
        await say_as(process, agent, sender, "What do you know?")
        returned = next(m for m in reversed(world.window(agent).messages) if m.tool_returns).tool_returns[0].text
        known = " ".join(fact["fact"] for fact in json.loads(returned)["facts"])
        assert own in known
        assert other not in known
        assert "office" in known
    # A turn with two senders finds the facts of neither.
    mind.turn = call("episodic_memory_search", query="salary of Ana, dog of Bo")
    both = [InputMessage((TextPart("We both ask."),), sender_id=sender) for sender in (ANA, BO)]
    await process.send_all(agent, both)
    returned = next(m for m in reversed(world.window(agent).messages) if m.tool_returns).tool_returns[0].text
    assert "5000" not in returned
    assert "Rex" not in returned


async def test_compacted_window_shows_the_memory_of_its_only_sender(world: World, process: Process, mind: Mind) -> None:
    agent = await world.agent(
        process, initial_messages=(), memory_extraction=BY_SENDER, compaction_settings=CompactionSettings("episodic")
    )
    conversation = (agent.id, agent.default_conversation_id)
    mind.answers = []
    await say_as(process, agent, ANA, "Remember: the salary of Ana is 5000.")
    await run_due(process)
    for _ in range(5):
        await say_as(process, agent, ANA, "Hello.")
    await run_due(process)
    whole = {"episodes": [extract_memories("[m1] user: Hello.")["episodes"][0]], "facts": []}
    mind.answers = [say(json.dumps(whole))]
    shown = (await process.compactions.compact(ME, None, *conversation, None, dry_run=False)).summary
    assert "- the salary of Ana is 5000." in shown
    await say_as(process, agent, BO, "Hello.")
    for _ in range(5):
        await say_as(process, agent, ANA, "Hello.")
    mind.answers = [say(json.dumps(whole))]
    shown = (await process.compactions.compact(ME, None, *conversation, None, dry_run=False)).summary
    assert "5000" not in shown


async def test_budget_of_the_day(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process, MemoryExtractionSettings(ExtractionMode.PER_TURN, max_calls_per_day=1))
    await process.send(agent, "Remember: the boat is red.")
    await run_due(process)
    await process.send(agent, "Remember: the car is blue.")
    await run_due(process)
    assert world.episodes.texts(agent.id) == ["the boat is red."]
    report = await process.orchestrator.extractions.extract(ME, agent.id, 0)
    assert (report.messages, report.has_more, report.budget_exhausted) == (0, True, True)
    world.clock.advance(86_400)
    await run_due(process)
    assert world.episodes.texts(agent.id) == ["the boat is red.", "the car is blue."]


async def test_tokens_of_an_organization_are_limited(world: World, process: Process, mind: Mind) -> None:
    process.orchestrator.extractions._tokens_per_day = 1_000
    first, second = await learner(world, process), await learner(world, process)
    await process.send(first, "Remember: the boat is red.")
    mind.answers = [replace(facts([]), usage=Usage(900, 200, 1_100))]
    await run_due(process)
    await process.send(second, "Remember: the car is blue.")
    await run_due(process)
    assert len(mind.asked) == 1
    world.clock.advance(86_400)
    await run_due(process)
    assert world.episodes.texts(second.id) == ["the car is blue."]


async def test_model_that_does_not_answer_is_asked_again_later(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process)
    await process.send(agent, "Remember: the boat is red.")
    mind.answers = [ProviderUnavailable("away", provider="scripted"), ProviderUnavailable("away", provider="scripted")]
    await run_due(process)
    await run_due(process)
    assert len(mind.asked) == 1
    with pytest.raises(Unavailable):
        await process.orchestrator.extractions.extract(ME, agent.id, 1)
    world.clock.advance(120)
    await run_due(process)
    assert world.episodes.texts(agent.id) == ["the boat is red."]


async def test_overlong_material_is_shortened(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process)
    await process.send(agent, "Remember: the boat is red. " + "word " * 3_000)
    mind.answers = [ContextOverflow("too long", provider="scripted")]
    await run_due(process)
    assert len(mind.asked[1]) < len(mind.asked[0])
    assert world.episodes.texts(agent.id) == ["the boat is red."]


async def test_facts_of_messages_erased_meanwhile_are_not_stored(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process)
    await say_as(process, agent, ANA, "Remember: the boat is red.")
    await say_as(process, agent, BO, "Remember: the car is blue.")

    async def erase(name: str) -> None:
        if name == "extractions.record":
            world.faults.on_effect = None
            await world.recall.erase_sender(ANA)

    world.faults.on_effect = erase
    await run_due(process)
    assert world.episodes.texts(agent.id) == ["the car is blue."]


async def test_only_one_extraction_of_an_agent_at_a_time(world: World, process: Process, mind: Mind) -> None:
    agent = await learner(world, process)
    await process.send(agent, "Remember: the boat is red.")
    other = world.process("instance-2")

    async def extract_too(name: str) -> None:
        if name == "extractions.record":
            world.faults.on_call = None
            for rival in (process, other):
                with pytest.raises(Aborted):
                    await rival.orchestrator.extractions.extract(ME, agent.id, 0)
            await other.orchestrator.extractions.run_due()

    world.faults.on_call = extract_too
    await run_due(process)
    assert len(mind.asked) == 1
    assert world.episodes.texts(agent.id) == ["the boat is red."]


@pytest.mark.parametrize("step", [7, pytest.param(2, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.sweep)])
async def test_crash_at_any_point_extracts_every_message_once(tmp_path: Path, step: int) -> None:
    async with opened(tmp_path) as world:
        mind = Mind(world)
        point = 0
        while True:
            world.faults = Faults()
            process = world.process()
            agent = await learner(world, process)
            known = len(world.episodes.sources)
            await process.send(agent, "Remember: the boat is red.")
            await process.send(agent, "Remember: the car is blue.")
            world.faults.calls.clear()
            world.faults.crashes_at = point
            with suppress(Crash):
                await run_due(process)
            has_crashed = world.faults.has_crashed
            world.faults = Faults()
            mind.answers = []
            second = world.process()
            await run_due(second)
            assert sorted(world.episodes.texts(agent.id)) == ["the boat is red.", "the car is blue."], point
            assert [len(ids) for ids in list(world.episodes.sources.values())[known:]] == [1, 1], point
            if not has_crashed:
                break
            point += step
        assert point > 10


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (MemoryExtractionSettings(frequency=0), "frequency"),
        (MemoryExtractionSettings(frequency=1_001), "frequency"),
        (MemoryExtractionSettings(max_calls_per_day=-1), "max_calls_per_day"),
        (MemoryExtractionSettings(model="no-handle"), "model"),
        (MemoryExtractionSettings(prompt="x" * 100_001), "prompt"),
    ],
)
async def test_invalid_settings_are_refused(
    world: World, process: Process, settings: MemoryExtractionSettings, field: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        await learner(world, process, settings)
    assert error.value.field == f"agent.memory_extraction.{field}"
    agent = await learner(world, process, None)
    with pytest.raises(InvalidArgument):
        await process.agents.update(ME, None, agent.id, {"memory_extraction": settings})
    assert (await process.agents.get(ME, agent.id)).memory_extraction is None


async def test_invalid_requests_are_refused(world: World, process: Process) -> None:
    agent = await learner(world, process, None)
    extract = process.orchestrator.extractions.extract
    for calls in (-1, 101):
        with pytest.raises(InvalidArgument) as error:
            await extract(ME, agent.id, calls)
        assert error.value.field == "max_calls"
    with pytest.raises(NotFound):
        await extract(ME, new_id("agent"), 1)


async def test_agent_gets_the_search_tool_with_the_setting(world: World, process: Process) -> None:
    agent = await learner(world, process)
    assert agent.tool("episodic_memory_search") is not None
    plain = await learner(world, process, None)
    assert plain.tool("episodic_memory_search") is None
    changed = await process.agents.update(ME, None, plain.id, {"memory_extraction": PER_TURN})
    assert changed.tool("episodic_memory_search") is not None
