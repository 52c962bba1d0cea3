"""Images in tool returns, as each API receives them from its real SDK."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient, render_body
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.provider import reads_images
from mnemesh_orchestrator.llm.settings import Api
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI, FakeResponses
from mnemesh_types.messages import ImagePart, Role, TextPart, ToolCall, ToolReturn, ToolStatus
from openai.types.chat import ChatCompletionContentPartImageParam
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter

from .windows import CLAUDE, OPENAI, THINKER, ask, at, everything, message, served_by, tool

DATA = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
PNG = ImagePart(DATA, "image/png")
BASE64 = base64.b64encode(DATA).decode()
URL = f"data:image/png;base64,{BASE64}"


def window(model: ModelInfo, *, fails: bool = False) -> LlmRequest:
    """A call of two tools, of which the second returns images, and the words of the user after it."""
    calls = (ToolCall("call_1", "look", "{}"), ToolCall("call_2", "open_files", "{}"))
    returns = (
        ToolReturn.from_text("call_1", "look", ToolStatus.SUCCESS, "Nothing."),
        ToolReturn(
            "call_2",
            "open_files",
            ToolStatus.ERROR if fails else ToolStatus.SUCCESS,
            (TextPart("Opened cat.png"), PNG, ImagePart(url="https://there.example/cat.webp")),
        ),
    )
    return ask(
        model,
        message(0, Role.SYSTEM, "You are an agent."),
        message(1, Role.USER, "What is on it?"),
        message(2, Role.ASSISTANT, tool_calls=calls),
        message(3, Role.TOOL, tool_returns=returns),
        message(4, Role.USER, "Well?"),
        tools=(tool("look"), tool("open_files")),
    )


async def _skip_wait(_: float) -> None: ...


async def _sent(server: FakeAnthropic | FakeOpenAI | FakeResponses, client: Any, request: LlmRequest) -> dict[str, Any]:
    server.script = ["A cat."]
    try:
        _, answer = await everything(client, request)
    finally:
        await client.close()
    assert answer.content == (TextPart("A cat."),)
    body: dict[str, Any] = json.loads(server.requests[0].raw)
    return body


@pytest.fixture
async def anthropic() -> AsyncIterator[FakeAnthropic]:
    async with FakeAnthropic() as server:
        yield server


async def test_anthropic_receives_them_in_the_result_of_the_tool(anthropic: FakeAnthropic) -> None:
    settings = at(anthropic.base_url, "anthropic", api_key="sk-ant-test")
    body = await _sent(anthropic, AnthropicMessagesClient(settings, sleep=_skip_wait), window(CLAUDE))
    from anthropic.types import MessageParam  # it takes a second

    adapter: TypeAdapter[Any] = TypeAdapter(list[MessageParam])
    adapter.validate_python(body["messages"])
    first, second = (block for block in body["messages"][2]["content"] if block["type"] == "tool_result")
    assert isinstance(first["content"], str)
    text, inline, linked = second["content"]
    assert (text["type"], "Opened cat.png" in text["text"]) == ("text", True)
    assert inline == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
    assert linked == {"type": "image", "source": {"type": "url", "url": "https://there.example/cat.webp"}}


async def test_responses_receive_them_in_the_output_of_the_call() -> None:
    async with FakeResponses() as server:
        client = OpenAiResponsesClient(at(server.base_url, api_key="sk-test"), sleep=_skip_wait)
        body = await _sent(server, client, window(THINKER))
    first, second = (item for item in body["input"] if item.get("type") == "function_call_output")
    adapter: TypeAdapter[Any] = TypeAdapter(FunctionCallOutput)
    adapter.validate_python(second)
    assert isinstance(first["output"], str)
    text, inline, linked = second["output"]
    assert (text["type"], "Opened cat.png" in text["text"]) == ("input_text", True)
    assert inline == {"type": "input_image", "image_url": URL, "detail": "auto"}
    assert linked["image_url"] == "https://there.example/cat.webp"


async def test_chat_completions_receive_them_from_the_user_after_all_returns() -> None:
    async with FakeOpenAI() as server:
        client = OpenAiChatClient(at(server.base_url, api_key="sk-test"), sleep=_skip_wait)
        body = await _sent(server, client, window(OPENAI))
    roles = [each["role"] for each in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    assert all(isinstance(each["content"], str) for each in body["messages"] if each["role"] == "tool")
    label, inline, linked, _ = body["messages"][5]["content"]
    assert label == {"type": "text", "text": "[Images that the tool call call_2 returned:]"}
    adapter: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionContentPartImageParam])
    adapter.validate_python([inline, linked])
    assert inline == {"type": "image_url", "image_url": {"url": URL}}
    assert linked["image_url"]["url"] == "https://there.example/cat.webp"


def test_a_vendor_that_refuses_a_user_after_a_tool_gets_an_assistant_message_between() -> None:
    roles = [each["role"] for each in render_body(window(served_by("mistral", "pixtral-large")))["messages"]]
    assert roles[-4:] == ["tool", "tool", "assistant", "user"]


async def test_the_return_of_a_call_that_failed_has_no_images(anthropic: FakeAnthropic) -> None:
    settings = at(anthropic.base_url, "anthropic", api_key="sk-ant-test")
    body = await _sent(anthropic, AnthropicMessagesClient(settings, sleep=_skip_wait), window(CLAUDE, fails=True))
    failed = next(block for block in body["messages"][2]["content"] if block.get("is_error"))
    assert isinstance(failed["content"], str)


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        (OPENAI, True),
        (THINKER, True),
        (CLAUDE, True),
        (served_by("google_ai", "gemini-3-flash"), True),
        (served_by("ollama", "qwen3-vl:8b"), True),
        (served_by("openrouter", "meta-llama/llama-4-scout"), True),
        (served_by("openai", "o3-mini"), False),
        (served_by("openai", "gpt-4"), False),
        (served_by("ollama", "qwen3:8b"), False),
        (served_by("mnemesh", "claude", Api.REHEARSAL), False),
    ],
)
def test_the_name_of_a_model_says_whether_it_reads_images(model: ModelInfo, seen: bool) -> None:
    assert reads_images(model) is seen
