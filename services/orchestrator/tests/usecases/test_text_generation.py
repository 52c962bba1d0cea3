"""Single answers of an agent's model."""

import pytest
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.errors import ModelUnknown, ProviderUnavailable
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Role, TextPart

from ..support.model import USAGE, say
from ..support.world import ME, Process, World

MISSING = "agent-00000000-0000-4000-8000-000000000000"


async def test_the_model_gets_the_prompt_alone_and_nothing_is_stored(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=ModelSettings(temperature=0.3))
    windows, rows = dict(world.recall.windows), {id_: list(found) for id_, found in world.recall.rows.items()}
    world.model.follow(say("Four."))
    answer = await process.orchestrator.generation.generate(ME, agent.id, "What is two and two?")
    assert (answer.text, answer.model, answer.usage) == ("Four.", agent.model, USAGE)
    asked = world.model.last
    assert [(message.role, message.content) for message in asked.messages] == [
        (Role.SYSTEM, (TextPart("You are a helpful assistant."),)),
        (Role.USER, (TextPart("What is two and two?"),)),
    ]
    assert (asked.tools, asked.settings.temperature, asked.is_verbatim) == ((), 0.3, True)
    assert (world.recall.windows, world.recall.rows) == (windows, rows)
    runs = await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), PageQuery(10, ascending=True))
    assert runs.items == ()


async def test_system_message_model_and_format_are_those_of_the_request(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=ModelSettings(temperature=0.3))
    world.model.follow(say("{}"))
    schema = ResponseFormat("json_schema", "answer", '{"type": "object"}')
    answer = await process.orchestrator.generation.generate(
        ME, agent.id, "Hi.", system="Answer in JSON.", model="anthropic/two", response_format=schema
    )
    asked = world.model.last
    assert (answer.model, asked.model.handle) == ("anthropic/two", "anthropic/two")
    assert asked.messages[0].content == (TextPart("Answer in JSON."),)
    assert asked.response_format == schema
    assert asked.settings.temperature is None, "the settings are those of the other model"


async def test_bad_requests_and_failures_of_the_model(world: World, process: Process) -> None:
    agent = await world.agent(process)
    generate = process.orchestrator.generation.generate
    with pytest.raises(InvalidArgument) as blank:
        await generate(ME, agent.id, " \n")
    assert blank.value.field == "prompt"
    with pytest.raises(NotFound):
        await generate(ME, MISSING, "Hi.")
    with pytest.raises(ModelUnknown):
        await generate(ME, agent.id, "Hi.", model="nobody/none")
    assert world.model.requests == []
    world.model.follow(ProviderUnavailable("Down.", provider="scripted"))
    with pytest.raises(ProviderUnavailable):
        await generate(ME, agent.id, "Hi.")
