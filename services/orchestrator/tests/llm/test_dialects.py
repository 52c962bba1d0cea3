"""Configuration and requests of each vendor."""

import json
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.config import ConfigError
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.llm.model_catalog import Providers
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient, render_body
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient
from mnemesh_orchestrator.llm.port import ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.llm.provider import make_client
from mnemesh_orchestrator.llm.settings import DIALECTS, Api, LlmSettings, ProviderSettings
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply, raw_stream
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ReasoningPart, Role, TextPart
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from .windows import REQUIRED, ask, at, called, everything, hello, message, returned, served_by, tool

NAMED = ToolChoice(ToolChoiceKind.NAMED, "a")
TOOLS = (tool("a", ["q"], q="string"),)


def configured(**env: str) -> dict[str, ProviderSettings]:
    return {each.name: each for each in Config.from_env(env).language_models.providers}


@pytest.mark.parametrize("dialect", [each for each in DIALECTS.values() if each.key_variables], ids=lambda d: d.type)
def test_every_vendor_is_configured_by_its_own_variables_and_those_of_mnemesh(dialect: Any) -> None:
    place = {f"MNEMESH_{dialect.type.upper()}_BASE_URL": "http://there/v1"}
    usual = configured(**{dialect.key_variables[0]: "usual"}, **place)[dialect.type]
    assert (usual.api_key, usual.dialect.api) == ("usual", dialect.api)
    own = configured(**{dialect.key_variables[0]: "usual", f"MNEMESH_{dialect.type.upper()}_API_KEY": "own"}, **place)
    assert own[dialect.type].api_key == "own"
    if dialect.url_variables:
        moved = configured(**{dialect.key_variables[0]: "k", dialect.url_variables[0]: "http://elsewhere/v1"})
        assert (moved[dialect.type].endpoint or "").startswith("http://elsewhere")
    alone = configured(**{dialect.key_variables[0]: "k"})
    assert (dialect.type in alone) is (dialect.base_url is not None and not dialect.is_local)


def test_no_variables_configure_no_provider() -> None:
    assert configured() == {}


@pytest.mark.parametrize(
    ("settings", "endpoint"),
    [
        (at(None, "groq"), "https://api.groq.com/openai/v1"),
        (at(None, "bedrock", region="eu-west-1"), "https://bedrock-mantle.eu-west-1.api.aws/openai/v1"),
        (at(None, "bedrock"), "https://bedrock-mantle.us-east-1.api.aws/openai/v1"),
        (at("https://x.openai.azure.com", "azure"), "https://x.openai.azure.com/openai/v1"),
        (at("https://x.openai.azure.com/openai/v1/", "azure"), "https://x.openai.azure.com/openai/v1"),
        (at("https://x.openai.azure.com/", "azure", api_version="2024-10-21"), "https://x.openai.azure.com/openai"),
        (at("http://localhost:11434", "ollama"), "http://localhost:11434/v1"),
        (at("http://localhost:11434/v1", "ollama"), "http://localhost:11434/v1"),
        (at("http://localhost:8000/", "vllm"), "http://localhost:8000/v1"),
    ],
)
def test_base_urls_are_accepted_as_the_vendor_documents_them(settings: ProviderSettings, endpoint: str) -> None:
    assert settings.endpoint == endpoint


async def test_azure_gets_key_in_header_and_deployment_in_path() -> None:
    events: list[tuple[str, str, str]] = []

    async def answer(request: Request) -> JSONResponse:
        events.append((request.url.path, request.headers["api-key"], request.query_params["api-version"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}
        return JSONResponse({"id": "x", "choices": [choice]})

    dated = Route("/openai/deployments/{name}/chat/completions", answer, methods=["POST"])
    async with FakeOpenAI(routes=[dated]) as fake:
        client = OpenAiChatClient(at(fake.origin, "azure", api_key="k", api_version="2024-10-21"))
        _, answered = await everything(client, hello(served_by("azure", "my-gpt")))
        await client.close()
    assert events == [("/openai/deployments/my-gpt/chat/completions", "k", "2024-10-21")]
    assert answered.content == (TextPart("Hi."),)


def test_api_can_be_configured() -> None:
    chosen = configured(OPENAI_API_KEY="k", MNEMESH_OPENAI_API="openai_responses")["openai"]
    assert isinstance(make_client(chosen, LlmSettings().limits), OpenAiResponsesClient)
    model, client = Providers(LlmSettings(providers=(chosen,))).resolve("openai/gpt-5")
    assert (model.api, type(client)) == (Api.RESPONSES, OpenAiResponsesClient)
    vllm = configured(VLLM_API_BASE="http://x:8000", MNEMESH_VLLM_API="openai_responses")["vllm"]
    assert isinstance(make_client(vllm, LlmSettings().limits), OpenAiResponsesClient)


def _window(type_: str, *more: Any) -> Any:
    return ask(
        served_by(type_),
        message(0, Role.SYSTEM, "You are an agent."),
        message(1, Role.USER, "Go."),
        called(2, "call_abcdefabcdefabcdefabcdef", "a", '{"q": "x"}', *more),
        returned(3, "call_abcdefabcdefabcdefabcdef", "a", "ok"),
        message(4, Role.USER, "And now?"),
        tools=TOOLS,
    )


@pytest.mark.parametrize("type_", ["mistral", "lmstudio"])
def test_ids_are_nine_letters_or_digits_if_required_and_stable(type_: str) -> None:
    first, longer = _window(type_), _window(type_)
    longer = replace(
        longer, messages=(*longer.messages, called(5, "call_second", "a"), returned(6, "call_second", "a", "ok"))
    )
    ids = []
    for request in (first, longer):
        shown = render_body(request)["messages"]
        calls = [call["id"] for each in shown for call in each.get("tool_calls") or ()]
        assert calls == [each["tool_call_id"] for each in shown if each["role"] == "tool"]
        assert all(len(call) == 9 and call.isalnum() and call.isascii() for call in calls)
        ids.append(calls)
    assert ids[1][0] == ids[0][0] != ids[1][1]


def test_accepted_ids_stay_unchanged_and_longer_ones_are_hashed() -> None:
    short, long = "call_abc", "call:" + "x" * 60
    for given, is_kept in ((short, True), (long, False)):
        shown = render_body(ask(served_by("openai_compatible"), called(1, given, "a"), returned(2, given, "a", "ok")))
        wire = shown["messages"][1]["tool_calls"][0]["id"]
        assert wire == shown["messages"][2]["tool_call_id"]
        assert (wire == given) is is_kept
        assert len(wire) <= 29
    other = render_body(
        ask(served_by("openai_compatible"), called(1, long + "y", "a"), returned(2, long + "y", "a", ""))
    )
    assert other["messages"][1]["tool_calls"][0]["id"] != wire, "ids that differ only at their end stay different"


def test_mistral_gets_required_order_of_roles() -> None:
    request = _window("mistral")
    roles = [each["role"] for each in render_body(request)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    ending = replace(request, messages=(*request.messages, message(5, Role.ASSISTANT, "Done.")))
    assert render_body(ending)["messages"][-1]["role"] == "user"
    assert [each["role"] for each in render_body(_window("openai_compatible"))["messages"]][-2:] == ["tool", "user"]


def test_deepseek_gets_back_only_its_own_reasoning() -> None:
    thought = ReasoningPart("Because.", is_native=True)
    (own,) = (each for each in render_body(_window("deepseek", thought))["messages"] if each["role"] == "assistant")
    assert own["reasoning_content"] == "Because."
    foreign = _window("deepseek", thought)
    foreign = replace(foreign, messages=tuple(replace(each, model="groq/x") for each in foreign.messages))
    (shown,) = (each for each in render_body(foreign)["messages"] if each["role"] == "assistant")
    assert shown["reasoning_content"] == "", "the field itself must be there"
    assert "reasoning_content" not in json.dumps(render_body(_window("groq", thought)))


@pytest.mark.parametrize(("is_on", "kind"), [(True, "enabled"), (False, "disabled"), (None, None)])
def test_deepseek_thinking_is_switched_by_setting(is_on: bool | None, kind: str | None) -> None:
    body = render_body(hello(served_by("deepseek"), settings=ModelSettings(enable_reasoner=is_on)))
    assert body.get("thinking") == (None if kind is None else {"type": kind})


async def test_gemini_gets_back_its_signatures() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    call["extra_content"] = {"google": {"thought_signature": "sig"}}
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    async with FakeOpenAI([raw_stream(f"data: {json.dumps(chunk)}\n", "data: [DONE]\n")]) as fake:
        client = OpenAiChatClient(at(fake.base_url, "google_ai"))
        _, answer = await everything(client, hello(served_by("google_ai"), tools=TOOLS))
        await client.close()
    for carried, signature in ((answer.carried, "sig"), (None, "skip_thought_signature_validator")):
        window = _window("google_ai")
        window = replace(window, messages=tuple(replace(each, carried=carried) for each in window.messages))
        shown = render_body(window)["messages"][2]["tool_calls"][0]
        assert shown["extra_content"] == {"google": {"thought_signature": signature}}


@pytest.mark.parametrize(
    ("type_", "choice", "shown"),
    [
        ("openai_compatible", REQUIRED, "required"),
        ("mistral", REQUIRED, "any"),
        ("openai_compatible", NAMED, {"type": "function", "function": {"name": "a"}}),
        ("lmstudio", NAMED, "required"),
        ("mistral", ToolChoice(), "auto"),
    ],
)
def test_tool_choice_uses_values_of_vendor(type_: str, choice: ToolChoice, shown: object) -> None:
    body = render_body(hello(served_by(type_), tools=TOOLS, tool_choice=choice))
    assert body["tool_choice"] == shown


@pytest.mark.parametrize("dialect", [each for each in DIALECTS.values() if each.api is Api.CHAT], ids=lambda d: d.type)
def test_unsupported_fields_are_not_sent(dialect: Any) -> None:
    model = replace(served_by(dialect.type), endpoint=None) if dialect.type == "openai" else served_by(dialect.type)
    settings = ModelSettings(max_output_tokens=7, strict_tool_schemas=True)
    wanted = ResponseFormat("json_schema", "x", '{"type": "object"}')
    body = render_body(hello(model, tools=TOOLS, settings=settings, response_format=wanted, parallel_tool_calls=True))
    assert body[dialect.limit.value] == 7
    assert ("max_tokens" in body) is not ("max_completion_tokens" in body)
    assert ("strict" in body["tools"][0]["function"]) is dialect.strict_tools
    assert ("parallel_tool_calls" in body) is dialect.parallel_flag
    assert ("stream_options" in body) is dialect.stream_usage
    assert body["response_format"]["type"] == ("json_schema" if dialect.json_schema else "json_object")


async def test_turn_with_each_vendor() -> None:
    async with FakeOpenAI([Reply(tool_calls=[("a", {"q": "x"}, "D681PevKs")])]) as fake:
        (mistral,) = configured(MISTRAL_API_KEY="k", MISTRAL_BASE_URL=fake.base_url).values()
        registry = Providers(LlmSettings(providers=(mistral,)))
        model, client = registry.resolve("mistral/mistral-large-latest")
        _, answer = await everything(client, hello(model, tools=TOOLS, tool_choice=REQUIRED))
        assert answer.tool_calls[0].provider_id == "D681PevKs"
        assert fake.requests[0].headers["authorization"] == "Bearer k"
        assert fake.requests[0].body["tool_choice"] == "any"
        await registry.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MNEMESH_CONTEXT_WINDOWS", "vllm/m"),
        ("MNEMESH_CONTEXT_WINDOWS", "m=4096"),
        ("MNEMESH_CONTEXT_WINDOWS", "vllm/m=0"),
        ("MNEMESH_OPENAI_API", "soap"),
        ("MNEMESH_VLLM_API", "soap"),
    ],
)
def test_invalid_setting_is_refused_at_startup(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid value"):
        Config.from_env({name: value, "VLLM_API_BASE": "http://x:8000"})


def test_windows_and_limits_are_settings() -> None:
    given = Config.from_env(
        {"MNEMESH_CONTEXT_WINDOWS": "vllm/a=4096, ollama/b:7b=8192", "MNEMESH_PROVIDER_IDLE_SECONDS": "5"}
    ).language_models
    assert given.context_windows == {"vllm/a": 4096, "ollama/b:7b": 8192}
    assert given.limits.idle_seconds == 5.0
