"""Errors that a provider reports inside a response with status 200, and the bound of all requests with one purpose."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from mnemesh_orchestrator.llm import errors
from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from mnemesh_orchestrator.llm.errors import error_from_response
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient
from mnemesh_orchestrator.llm.port import AttemptBudget, LlmClient
from mnemesh_orchestrator.llm.transport import report_in_answer
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI, FakeResponses
from mnemesh_testkit.fakes.server import Fault, cut_stream, garbage, raw_stream, status
from mnemesh_types.messages import Role

from .windows import CLAUDE, OPENAI, THINKER, ask, at, called, everything, hello, message, returned

KEY = "sk-test-0123456789abcdef"


def body(document: Any) -> Fault:
    """A whole body with status 200."""
    return Fault(kind="body", body=json.dumps(document).encode(), headers={"content-type": "application/json"})


def event(document: Any, name: str | None = None) -> Fault:
    """One event of a stream."""
    return raw_stream(*([f"event: {name}"] if name else []), f"data: {json.dumps(document)}", "")


def later(document: Any) -> Fault:
    """An event after the first chunk, which has no text yet."""
    return raw_stream('data: {"choices":[{"delta":{"role":"assistant"}}]}', "", f"data: {json.dumps(document)}", "")


class Waits:
    """Replaces the waits between requests."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


REPORTS = [
    ({"error": {"code": 401, "message": "No auth credentials found"}}, errors.ProviderAuth, 1),
    ({"error": {"code": "403", "message": "Nope."}}, errors.ProviderAuth, 1),
    ({"error": {"code": 402, "message": "Nope."}}, errors.ProviderPaymentRequired, 1),
    ({"error": {"code": 404, "message": "Nope."}}, errors.ProviderRefused, 1),
    ({"error": {"code": 400, "message": "Nope."}}, errors.ProviderRefused, 1),
    ({"error": {"code": "insufficient_quota", "message": "Nope."}}, errors.ProviderPaymentRequired, 1),
    ({"error": {"code": "context_length_exceeded", "message": "Nope."}}, errors.ContextOverflow, 1),
    ({"error": '{"error": {"type": "invalid_api_key", "message": "Nope."}}'}, errors.ProviderAuth, 1),
    ([{"error": {"status": "PERMISSION_DENIED", "message": "Nope."}}], errors.ProviderAuth, 1),
    ({"error": True, "message": "Invalid API key"}, errors.ProviderAuth, 1),
    ({"object": "error", "message": "Nope.", "type": "BadRequestError", "code": 400}, errors.ProviderRefused, 1),
    ({"detail": "Invalid API key"}, errors.ProviderAuth, 1),
    ({"code": 401, "msg": "Nope.", "success": False}, errors.ProviderAuth, 1),
    ({"choices": [], "base_resp": {"status_code": 1004, "status_msg": "Nope."}}, errors.ProviderAuth, 1),
    ({"choices": [{"error": {"code": 400, "message": "Nope."}, "delta": {}}]}, errors.ProviderRefused, 1),
    ({"error": {"code": 429, "message": "Slow down."}}, errors.ProviderRateLimited, 5),
    ({"error": {"code": 502, "message": "Busy."}}, errors.ProviderUnavailable, 5),
    ({"error": "Something broke."}, errors.ProviderUnavailable, 5),
]


@pytest.mark.parametrize("form", [body, event, later, lambda document: event(document, "error")])
async def test_error_in_a_good_response_is_classified_like_a_status(form: Callable[[Any], Fault]) -> None:
    async with FakeOpenAI() as fake:
        for document, kind, requests in REPORTS:
            fake.script, waits, before = [form(document)] * requests, Waits(), len(fake.requests)
            client = OpenAiChatClient(at(fake.base_url, api_key=KEY), sleep=waits)
            with pytest.raises(errors.ProviderError) as caught:
                await everything(client, hello())
            await client.close()
            found = type(caught.value), len(fake.requests) - before, len(waits.seconds)
            assert found == (kind, requests, requests - 1), document


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"type": "error", "error": {"type": "authentication_error", "message": "Nope."}}, errors.ProviderAuth),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "Nope."}}, errors.ProviderRefused),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Nope."}}, errors.ProviderUnavailable),
        ({"error": {"code": 401, "message": "Nope."}}, errors.ProviderAuth),
        ({"message": "Nope.", "code": 400}, errors.ProviderRefused),
    ],
)
async def test_errors_of_servers_with_the_messages_api(document: Any, kind: type[errors.ProviderError]) -> None:
    for form in (body(document), event(document, "error"), event(document, "message_start")):
        async with FakeAnthropic(lambda _, form=form: form) as fake:
            client = AnthropicMessagesClient(at(fake.base_url, "anthropic", api_key=KEY), sleep=Waits())
            with pytest.raises(errors.ProviderError) as caught:
                await everything(client, ask(CLAUDE, message(1, Role.SYSTEM, "Be."), message(2, Role.USER, "Hi")))
            assert type(caught.value) is kind
            assert len(fake.requests) == (5 if kind.is_retryable else 1)
            await client.close()


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"type": "error", "code": "invalid_api_key", "message": "Nope.", "param": None}, errors.ProviderAuth),
        (
            {"type": "response.failed", "response": {"status": "failed", "error": {"code": "invalid_prompt"}}},
            errors.ProviderContentFilter,
        ),
        (
            {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}}},
            errors.ProviderUnavailable,
        ),
        ({"object": "response", "output": [], "error": {"code": 401, "message": "Nope."}}, errors.ProviderAuth),
    ],
)
async def test_errors_of_the_responses_api(document: Any, kind: type[errors.ProviderError]) -> None:
    for form in (body(document), event(document, document.get("type"))):
        async with FakeResponses(lambda _, form=form: form) as fake:
            client = OpenAiResponsesClient(at(fake.base_url, api_key=KEY), sleep=Waits())
            with pytest.raises(errors.ProviderError) as caught:
                await everything(client, ask(THINKER, message(1, Role.SYSTEM, "Be."), message(2, Role.USER, "Hi")))
            assert type(caught.value) is kind
            assert len(fake.requests) == (5 if kind.is_retryable else 1)
            await client.close()


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"delta": {"content": "error"}}]},
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": [], "base_resp": {"status_code": 0, "status_msg": ""}},
        {"id": "x", "object": "chat.completion.chunk", "choices": [{"delta": {}}], "error": None},
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "message", "content": [{"type": "text", "text": "error"}]},
        {"type": "response.output_text.delta", "delta": "error"},
        {"type": "response.created", "response": {"status": "in_progress", "error": None}},
        {"id": "x", "object": "chat.completion.chunk"},
        ["no", "object"],
        "error",
    ],
)
def test_a_part_of_an_answer_is_not_an_error(document: object) -> None:
    assert report_in_answer(document) is None


def test_the_words_of_the_provider_behind_a_router_are_shown_without_keys() -> None:
    raw = json.dumps({"error": {"message": f"Unknown field 'foo' for {KEY}", "type": "invalid_request_error"}})
    said = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    error = error_from_response("openrouter", None, report_in_answer(said))
    assert "Provider returned error: Unknown field 'foo' for [key]" in error.message
    assert KEY not in error.message


async def _call(client: LlmClient, budget: AttemptBudget) -> errors.ProviderError:
    history = message(1, Role.SYSTEM, "Be."), message(2, Role.USER, "Hi"), called(3, "c", "search")
    request = ask(OPENAI, *history, returned(4, "c", "search", "None."), message(5, Role.USER, "So?"))
    with pytest.raises(errors.ProviderError) as caught:
        async for _ in client.stream(request, budget):
            pass
    return caught.value


@pytest.mark.parametrize(
    ("fault", "most"),
    [
        (status(503), 5),
        (cut_stream(after=0), 5),
        (cut_stream(after=3), 3),
        (garbage(), 2),
        (status(401), 1),
        (status(400, "Conversation roles must alternate."), 4),
        # An exception of a template is repeated as an error of the server, and beside it in other forms.
        (status(500, "Jinja: conversation roles must alternate."), 9),
    ],
)
async def test_requests_with_one_purpose_are_bounded_whatever_level_repeats_them(fault: Fault, most: int) -> None:
    waits = Waits()
    async with FakeOpenAI(lambda _: fault) as fake:
        client = OpenAiChatClient(at(fake.base_url, api_key=KEY), sleep=waits)
        budget = AttemptBudget()
        while budget.may_repeat(await _call(client, budget), has_begun=True):
            pass
        assert len(fake.requests) == most
        assert sum(waits.seconds) <= 7.5
        await client.close()


@pytest.mark.parametrize("late", ['{"error":{"code":500,"message":"Too late."}}', "no JSON", "[done]"])
async def test_error_behind_a_complete_answer_does_not_matter(late: str) -> None:
    whole = 'data: {"choices":[{"delta":{"content":"Hello."},"finish_reason":"stop"}]}'
    async with FakeOpenAI() as fake:
        fake.script = [raw_stream(whole, "", f"data: {late}", "")]
        client = OpenAiChatClient(at(fake.base_url, api_key=KEY), sleep=Waits())
        _, answer = await everything(client, hello())
        assert [part.text for part in answer.content] == ["Hello."]  # type: ignore[union-attr]
        await client.close()


async def test_error_behind_an_interrupted_answer_is_its_reason() -> None:
    chunk = 'data: {"choices":[{"delta":{"content":"Hel"},"finish_reason":"error"}]}'
    async with FakeOpenAI() as fake:
        fake.script = [raw_stream(chunk, "", 'data: {"error":{"code":401,"message":"Nope."}}', "")]
        client = OpenAiChatClient(at(fake.base_url, api_key=KEY), sleep=Waits())
        with pytest.raises(errors.ProviderAuth):
            await everything(client, hello())
        await client.close()
