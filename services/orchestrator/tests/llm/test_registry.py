"""Resolution of handles, default models, and lazy imports of SDKs."""

import subprocess
import sys

import pytest
from mnemesh_orchestrator.llm.errors import ModelUnknown, ProviderUnavailable
from mnemesh_orchestrator.llm.model_catalog import Providers
from mnemesh_orchestrator.llm.settings import LlmSettings, ProviderSettings
from mnemesh_testkit.fakes.openai import FakeOpenAI

from .windows import at, everything, hello

LOCAL = "http://127.0.0.1:1/v1"
OPENAI, ANTHROPIC = at(None, api_key="k"), at(None, "anthropic", api_key="k")


@pytest.mark.parametrize(
    ("providers", "default", "handle"),
    [
        ((), None, "mnemesh/rehearsal"),
        ((OPENAI,), None, "openai/gpt-6-luna"),
        ((ANTHROPIC,), None, "anthropic/claude-haiku-5-5"),
        ((ANTHROPIC, OPENAI), None, "openai/gpt-6-luna"),
        ((at("http://x", "anthropic"),), None, "anthropic/claude-haiku-5-5"),
        ((at(LOCAL),), "openai/llama3", "openai/llama3"),
    ],
)
async def test_default_model_depends_on_configured_providers(
    providers: tuple[ProviderSettings, ...], default: str | None, handle: str
) -> None:
    async def skip_wait(_: float) -> None: ...

    registry = Providers(LlmSettings(providers=providers, default_model=default), sleep=skip_wait)
    assert await registry.default_handle() == handle
    await registry.close()


@pytest.mark.parametrize("configured", [(at(LOCAL),), (at(LOCAL, "ollama"),), (at(LOCAL), ANTHROPIC)])
async def test_default_model_of_a_server_that_does_not_list_its_models_is_unknown(
    configured: tuple[ProviderSettings, ...],
) -> None:
    async def skip_wait(_: float) -> None: ...

    providers = Providers(LlmSettings(providers=configured), sleep=skip_wait)
    with pytest.raises(ProviderUnavailable, match=r"default model is unknown for now.*MNEMESH_MODEL"):
        await providers.default_handle()
    await providers.close()


async def test_default_model_is_asked_for_again() -> None:
    async def skip_wait(_: float) -> None: ...

    async with FakeOpenAI(models=["meta/llama3"]) as fake:
        providers = Providers(LlmSettings(providers=(at(fake.base_url),)), sleep=skip_wait)
        fake.lists_models = False
        with pytest.raises(ProviderUnavailable):
            await providers.default_handle()
        fake.lists_models = True
        assert await providers.default_handle() == "openai/meta/llama3"
        await providers.close()


async def test_compatible_server_without_key_lists_models_and_answers() -> None:
    async with FakeOpenAI(["Hi."], models=["meta/llama3", "qwen"]) as fake:
        providers = Providers(LlmSettings(providers=(at(fake.base_url),)))
        assert await providers.default_handle() == "openai/meta/llama3"
        listed = {model.handle: model for model in await providers.list_models()}
        assert set(listed) == {"mnemesh/rehearsal", "openai/meta/llama3", "openai/qwen"}
        model, client = providers.resolve("openai/meta/llama3")
        assert (model.provider_model, model.context_window) == ("meta/llama3", 32_000)
        await everything(client, hello(model))
        assert fake.requests[0].body["model"] == "meta/llama3"
        await providers.close()


async def test_list_is_cached_from_last_read() -> None:
    async def skip_wait(_: float) -> None: ...

    async with FakeOpenAI(models=["meta/llama3"]) as fake:
        providers = Providers(LlmSettings(providers=(at(fake.base_url),)), sleep=skip_wait)
        before = await providers.list_models()
    assert await providers.list_models() == before, "the server is stopped"
    await providers.close()


@pytest.mark.parametrize(
    ("handle", "window"),
    [
        ("openai/gpt-4o-mini-2024-07-18", 128_000),
        ("openai/gpt-4.1-nano", 1_000_000),
        ("openai/gpt-4-0613", 8_192),
        ("openai/gpt-5-mini", 400_000),
        ("openai/o4-mini", 200_000),
        ("openai/what-comes-next", 128_000),
        ("anthropic/claude-3-5-haiku-20241022", 200_000),
        ("anthropic/unheard-of", 200_000),
        ("openai/mine", 77_000),
    ],
)
def test_windows_are_looked_up_by_name(handle: str, window: int) -> None:
    settings = LlmSettings(providers=(OPENAI, ANTHROPIC), context_windows={"openai/mine": 77_000})
    assert Providers(settings).resolve(handle)[0].context_window == window


@pytest.mark.parametrize("handle", ["", "gpt-4o", "openai/", "openai/gpt-4o", "mnemesh/other", "unknown/x"])
def test_unknown_handle_error_lists_configured_providers(handle: str) -> None:
    with pytest.raises(ModelUnknown, match="configured: mnemesh") as caught:
        Providers(LlmSettings()).resolve(handle)
    assert (caught.value.reason, caught.value.metadata["model"]) == ("MODEL_UNKNOWN", handle)


def test_keys_are_not_in_model_info_or_repr_of_settings() -> None:
    secret = at("http://user:topsecret@host/v1", api_key="topsecret", headers={"x-key": "topsecret"})
    model, _ = Providers(LlmSettings(providers=(secret,))).resolve("openai/x")
    assert model.endpoint == "http://host/v1"
    assert "topsecret" not in repr(model) + repr(at(None, api_key="topsecret", headers={"x-key": "topsecret"}))


@pytest.mark.full
def test_sdks_are_imported_on_first_use() -> None:
    program = """
import asyncio, sys
from mnemesh_orchestrator.llm.model_catalog import Providers
from mnemesh_orchestrator.llm.settings import LlmSettings, ProviderSettings
both = tuple(ProviderSettings(name=name, type=name, api_key="k") for name in ("openai", "anthropic"))
providers = Providers(LlmSettings(providers=both))
asyncio.run(providers.list_models())
loaded = lambda: {name for name in ("openai", "anthropic", "httpx2") if name in sys.modules}
assert loaded() == set(), loaded()
asyncio.run(providers.prepare("openai/gpt-4o"))
assert loaded() == {"openai", "httpx2"}, loaded()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
