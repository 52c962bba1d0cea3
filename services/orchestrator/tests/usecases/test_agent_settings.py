"""Settings that no turn could use are refused when an agent is created or changed, and nothing is stored."""

from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_orchestrator.model.agents import AgentFilter, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.episodes import MemoryExtractionSettings
from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ResponseFormat, require_settings_of
from mnemesh_types.agents import CompactionSettings, ModelSettings
from mnemesh_types.blocks import Block

from ..support.world import ME, Process, World

UNKNOWN = "nowhere/x"
NAN = float("nan")
SERVED = ModelInfo("house/m", "house", "m", "openai_chat", ModelSettings(context_window=8_000))
SCHEMA = '{"type": "object"}'


def of_model(**values: Any) -> dict[str, Any]:
    return {"model_settings": ModelSettings(**values)}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("agent.model", {"model": UNKNOWN}),
    ("agent.model", {"model": "without-a-provider"}),
    *(("agent.model_settings.context_window", of_model(context_window=tokens)) for tokens in (-1, 0, 100, 999)),
    ("agent.model_settings.max_output_tokens", of_model(max_output_tokens=0)),
    ("agent.model_settings.max_output_tokens", of_model(context_window=8_000, max_output_tokens=8_000)),
    ("agent.model_settings.max_reasoning_tokens", of_model(max_reasoning_tokens=-5)),
    ("agent.model_settings.max_reasoning_tokens", of_model(context_window=8_000, max_reasoning_tokens=8_001)),
    *(("agent.model_settings.temperature", of_model(temperature=value)) for value in (-0.1, 2.1, NAN)),
    *(("agent.model_settings.top_p", of_model(top_p=value)) for value in (-0.1, 1.1, NAN)),
    *(("agent.model_settings.reasoning_effort", of_model(reasoning_effort=word)) for word in ("", "banana", "HIGH")),
    ("agent.model_settings.fallback_model", of_model(fallback_model=UNKNOWN)),
    ("agent.model_settings.provider_options", of_model(provider_options="[]")),
    ("agent.compaction_settings.model", {"compaction_settings": CompactionSettings(model=UNKNOWN)}),
    (
        "agent.compaction_settings.model_settings.fallback_model",
        {"compaction_settings": CompactionSettings(model_settings=ModelSettings(fallback_model=UNKNOWN))},
    ),
    ("agent.memory_extraction.model", {"memory_extraction": MemoryExtractionSettings(model=UNKNOWN)}),
    ("agent.embedder", {"embedder": UNKNOWN}),
    ("agent.embedder", {"embedder": "openai/text-embedding-3-small"}),
    ("agent.time_zone", {"time_zone": "Mars/Base"}),
    ("agent.response_format.json_schema.schema", {"response_format": ResponseFormat("json_schema", "a", None)}),
    (
        "agent.response_format.json_schema.schema",
        {"response_format": ResponseFormat("json_schema", "a", '{"type": "nonsense"}')},
    ),
    ("agent.response_format.json_schema.name", {"response_format": ResponseFormat("json_schema", "a b", SCHEMA)}),
    *(("agent.max_files_open", {"max_files_open": count}) for count in (-1, 0, 1_001)),
    *(
        ("agent.per_file_view_window_char_limit", {"per_file_view_window_char_limit": count})
        for count in (-1, 0, 1_000_001)
    ),
]


async def stored(process: Process) -> int:
    return await process.agents.count(ME, AgentFilter())


@pytest.mark.parametrize(("field", "values"), REFUSED, ids=lambda value: str(value)[:80])
async def test_unusable_setting_is_refused_by_creation_and_by_update(
    world: World, process: Process, field: str, values: dict[str, Any]
) -> None:
    with pytest.raises(MnemeshError) as refused:
        await process.lifecycle.create(ME, None, AgentDraft(AgentType.LETTA_V1, **values))
    assert refused.value.field == field
    assert field in refused.value.message
    assert await stored(process) == 0

    agent = await world.agent(process)
    with pytest.raises(MnemeshError) as refused:
        await process.agents.update(ME, None, agent.id, values)
    assert refused.value.field == field
    assert await process.agents.get(ME, agent.id) == agent


@pytest.mark.parametrize(
    ("field", "block"),
    [
        ("blocks[1].limit", Block(label="human", value="Ada.", limit=-1)),
        ("blocks[1]", Block(label="human", value="x" * 50, limit=10)),
        ("blocks[1].label", Block(label="a b", value="Ada.")),
    ],
    ids=["negative limit", "value above the limit", "label"],
)
async def test_refused_block_is_named_and_leaves_nothing(
    world: World, process: Process, field: str, block: Block
) -> None:
    draft = AgentDraft(AgentType.LETTA_V1, blocks=(Block(label="persona", value="Kind."), block))
    with pytest.raises(MnemeshError) as refused:
        await process.lifecycle.create(ME, None, draft)
    assert refused.value.field == field
    assert await stored(process) == 0
    assert world.blocks.blocks == {}


@pytest.mark.parametrize("type_", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_window_without_space_for_prompt_and_tools_is_refused(
    world: World, process: Process, type_: AgentType
) -> None:
    field, small = "agent.model_settings.context_window", of_model(context_window=1_000)
    with pytest.raises(InvalidArgument, match="the system prompt and the tools take about") as refused:
        await process.lifecycle.create(ME, None, AgentDraft(type_, **small))
    assert refused.value.field == field
    assert await stored(process) == 0
    agent = await world.agent(process, type_)
    with pytest.raises(InvalidArgument) as refused:
        await process.agents.update(ME, None, agent.id, small)
    assert refused.value.field == field
    assert (await process.agents.get(ME, agent.id)).model_settings.context_window is None
    bare = AgentDraft(type_, include_base_tools=False, system="Be brief.", **small)
    assert (await process.lifecycle.create(ME, None, bare)).model_settings.context_window == 1_000


@pytest.mark.parametrize("source", [FigureSource.TABLE, FigureSource.PROVIDER, FigureSource.OVERRIDE])
@pytest.mark.parametrize(
    ("field", "tokens"), [("context_window", 8_001), ("max_output_tokens", 8_000), ("max_reasoning_tokens", 8_000)]
)
def test_figure_above_a_known_window_of_the_model_is_refused(source: FigureSource, field: str, tokens: int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        require_settings_of(replace(SERVED, window_source=source), ModelSettings(**{field: tokens}), "agent.x")
    assert refused.value.field == f"agent.x.{field}"
    assert field in refused.value.message


def test_answer_above_the_longest_one_of_the_model_is_refused() -> None:
    served = replace(SERVED, max_output_tokens=2_000, output_source=FigureSource.PROVIDER)
    with pytest.raises(InvalidArgument) as refused:
        require_settings_of(served, ModelSettings(max_output_tokens=2_001), "agent.x")
    assert refused.value.field == "agent.x.max_output_tokens"
    safe = replace(served, output_source=FigureSource.TABLE)
    require_settings_of(safe, ModelSettings(max_output_tokens=2_001), "agent.x")
    assert safe.effective(ModelSettings(max_output_tokens=2_001)).max_output_tokens == 2_001


def test_window_above_an_assumed_one_is_used() -> None:
    settings = ModelSettings(context_window=64_000, max_output_tokens=9_000)
    require_settings_of(SERVED, settings, "agent.x")
    assert SERVED.effective(settings) == settings


def test_figures_that_were_set_for_a_larger_model_are_those_of_the_model() -> None:
    served = replace(
        SERVED, window_source=FigureSource.TABLE, max_output_tokens=2_000, output_source=FigureSource.OVERRIDE
    )
    settings = ModelSettings(context_window=64_000, max_output_tokens=9_000)
    assert served.effective(settings) == ModelSettings(context_window=8_000, max_output_tokens=2_000)
