"""Models and their windows as each kind of server lists them."""

from typing import Any

import pytest
from mnemesh_orchestrator.llm.model_catalog import Providers
from mnemesh_orchestrator.llm.settings import LlmSettings
from mnemesh_orchestrator.model.models import FigureSource
from mnemesh_testkit.fakes.openai import FakeOpenAI

from .windows import at


class Clock:
    """A clock that is advanced by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def windows(fake: FakeOpenAI, type_: str, **settings: Any) -> dict[str, tuple[int, FigureSource]]:
    registry = Providers(LlmSettings(providers=(at(fake.base_url, type_),), **settings))
    listed = await registry.list_models()
    await registry.close()
    return {each.provider_model: (each.context_window, each.window_source) for each in listed if each.provider == type_}


@pytest.mark.parametrize(
    ("type_", "row"),
    [
        ("vllm", {"max_model_len": 24_000}),
        ("openrouter", {"context_length": 24_000, "top_provider": {"max_completion_tokens": 8_000}}),
        ("groq", {"context_window": 24_000, "max_completion_tokens": 8_000}),
        ("mistral", {"max_context_length": 24_000}),
        ("together", {"context_length": 24_000, "type": "chat"}),
    ],
)
async def test_row_of_models_has_the_window(type_: str, row: dict[str, Any]) -> None:
    async with FakeOpenAI(models=[{"id": "m", **row}, "silent", {"id": "e", "type": "embedding"}]) as fake:
        found = await windows(fake, type_)
    assert found == {"m": (24_000, FigureSource.PROVIDER), "silent": (32_000, FigureSource.DEFAULT)}


async def test_list_without_envelope_is_accepted() -> None:
    page = [{"id": "models/gemini-x", "context_length": 9}]
    async with FakeOpenAI(pages={"/bare/models": page}) as fake:
        registry = Providers(LlmSettings(providers=(at(f"{fake.origin}/bare", "google_ai"),)))
        assert "google_ai/gemini-x" in [each.handle for each in await registry.list_models()]
        await registry.close()


async def test_ollama_windows_are_those_in_use() -> None:
    def show(body: dict[str, Any]) -> dict[str, Any]:
        trained = {"model_info": {"general.architecture": "llama", "llama.context_length": 131_072}}
        text = {
            "set": {"parameters": 'num_ctx                        16384\nstop  "<|end|>"', **trained},
            "short": {"model_info": {"tiny.context_length": 2_048}},
        }
        return text.get(body["model"], trained)

    running = {"models": [{"name": "loaded", "context_length": 65_536}]}
    pages = {"/api/ps": running, "/api/show": show}
    async with FakeOpenAI(models=["loaded", "set", "plain", "short"], pages=pages) as fake:
        found = await windows(fake, "ollama")
    assert {name: window for name, (window, _) in found.items()} == {
        "loaded": 65_536,
        "set": 16_384,
        "plain": 4_096,
        "short": 2_048,
    }


@pytest.mark.parametrize(
    "pages",
    [
        {
            "/api/v1/models": {
                "models": [
                    {"key": "a", "type": "llm", "max_context_length": 131_072, "loaded_instances": []},
                    {
                        "key": "b",
                        "type": "llm",
                        "max_context_length": 131_072,
                        "loaded_instances": [{"id": "b", "config": {"context_length": 8_192}}],
                    },
                    {"key": "e", "type": "embedding", "max_context_length": 512},
                ]
            }
        },
        {
            "/api/v0/models": {
                "data": [
                    {"id": "a", "type": "llm", "state": "not-loaded", "max_context_length": 131_072},
                    {"id": "b", "type": "vlm", "max_context_length": 131_072, "loaded_context_length": 8_192},
                    {"id": "e", "type": "embeddings", "max_context_length": 512},
                ]
            }
        },
    ],
)
async def test_lm_studio_windows_of_loaded_models_take_precedence(pages: dict[str, Any]) -> None:
    async with FakeOpenAI(pages=pages) as fake:
        found = await windows(fake, "lmstudio")
    assert found == {"a": (131_072, FigureSource.PROVIDER), "b": (8_192, FigureSource.PROVIDER)}


async def test_older_lm_studio_lists_its_models() -> None:
    async with FakeOpenAI(models=["a"]) as fake:
        assert await windows(fake, "lmstudio") == {"a": (32_000, FigureSource.DEFAULT)}


async def test_window_set_by_operator_takes_precedence() -> None:
    async with FakeOpenAI(models=[{"id": "m", "max_model_len": 24_000}]) as fake:
        found = await windows(fake, "vllm", context_windows={"vllm/m": 9_000})
    assert found == {"m": (9_000, FigureSource.OVERRIDE)}


async def test_turn_reads_the_window_of_its_server_once() -> None:
    clock = Clock()
    async with FakeOpenAI(models=[{"id": "m", "max_model_len": 24_000}]) as fake:
        registry = Providers(LlmSettings(providers=(at(fake.base_url, "vllm"),)), monotonic=clock)
        assert registry.resolve("vllm/m")[0].context_window == 32_000, "no server was called yet"
        for _ in range(3):
            model, _ = await registry.resolve_for_turn("vllm/m")
            assert model.context_window == 24_000
        assert fake.asked == ["/v1/models"]
        await registry.close()


async def test_unreachable_server_is_called_again_after_a_minute() -> None:
    clock = Clock()
    async with FakeOpenAI(models=[{"id": "m", "max_model_len": 24_000}], pages={"/api/ps": {"models": []}}) as fake:
        away = Providers(LlmSettings(providers=(at("http://127.0.0.1:1/v1", "vllm"),)), monotonic=clock)
        assert (await away.resolve_for_turn("vllm/m"))[0].context_window == 32_000
        back = Providers(LlmSettings(providers=(at(fake.base_url, "ollama"),)), monotonic=clock)
        await back.resolve_for_turn("ollama/m")
        clock.now = 299.0
        await back.resolve_for_turn("ollama/m")
        assert fake.asked.count("/api/ps") == 1
        clock.now = 301.0
        await back.resolve_for_turn("ollama/m")
        assert fake.asked.count("/api/ps") == 2, "models may be loaded again with other windows"
        await away.close()
        await back.close()
