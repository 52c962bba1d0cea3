"""The windows and prices of models, and the cost of calls."""

import pytest
from mnemesh_orchestrator.llm.port import DEFAULT_LIMITS
from mnemesh_orchestrator.llm.provider import Provider, cost_of, model_figures
from mnemesh_orchestrator.model.models import FigureSource
from mnemesh_types.agents import ModelPrice
from mnemesh_types.usage import Usage

from .windows import at

PRICE = ModelPrice(input=2_000_000, cached_input=500_000, cache_write=2_500_000, output=8_000_000)


@pytest.mark.parametrize("name", ["gpt-4.1", "gpt-4.1-2025-04-14"])
def test_versions_of_a_model_have_its_figures(name: str) -> None:
    found = model_figures("openai", name)
    assert found is not None
    assert (found.context_window, found.price.input, found.price.output) == (1_000_000, 2_000_000, 8_000_000)


@pytest.mark.parametrize(
    ("type_", "name"), [("openai", "gpt-4.1-turbo"), ("ollama", "gpt-4.1"), ("openai", ""), ("openai_compatible", "x")]
)
def test_another_model_has_no_figures(type_: str, name: str) -> None:
    assert model_figures(type_, name) is None


@pytest.mark.parametrize(("type_", "name"), [("openai", "gpt-6-luna"), ("anthropic", "claude-haiku-5-5")])
async def test_default_models_have_a_window_and_a_price(type_: str, name: str) -> None:
    provider = Provider(at(None, type_, api_key="k"), DEFAULT_LIMITS, None, lambda: 0.0)  # type: ignore[arg-type]
    assert provider.default_model == name
    info = provider.info(name)
    assert info.context_window >= 400_000
    assert info.window_source is FigureSource.TABLE
    assert cost_of(Usage(1_000_000, 1_000_000), info.price) == 600_000_000  # 0.10 and 0.50 dollars


@pytest.mark.parametrize(
    ("usage", "nano"),
    [
        (Usage(1_000, 100), 2_800_000),
        (Usage(1_000, 100, cached_input_tokens=600, cache_write_tokens=200), 2_000_000),
        (Usage(0, 0), 0),
        (Usage(1_000, None), None),
        (Usage(), None),
    ],
)
def test_cost_counts_cached_tokens_at_their_own_price(usage: Usage, nano: int | None) -> None:
    assert cost_of(usage, PRICE) == nano
    assert cost_of(usage, None) is None
    assert cost_of(usage, ModelPrice(input=1)) is None


def test_sum_of_costs_covers_the_calls_with_a_price() -> None:
    total = Usage(1, 1, cost_nano_usd=5) + Usage(1, 1) + Usage(1, 1, cost_nano_usd=7)
    assert (total.prompt_tokens, total.cost_nano_usd) == (3, 12)
