"""Failures of the provider, as the OpenAI adapter reports and retries them."""

import asyncio
from typing import Any

import pytest
from mnemesh_orchestrator.llm import errors
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.port import CallLimits, LlmAnswer, LlmEvent, TextDelta
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import (
    Fault,
    Reply,
    context_overflow,
    cut_stream,
    error_event,
    garbage,
    hang,
    html_page,
    overloaded,
    rate_limited,
    raw_stream,
    status,
)
from mnemesh_types.messages import TextPart

from ..windows import at, collect, everything, hello
from .conftest import KEY, RecordedWaits


@pytest.mark.parametrize(
    ("fault", "kind", "attempts"),
    [
        (status(401, f"Incorrect API key provided: {KEY}."), errors.ProviderAuth, 1),
        (status(403, "Not your model."), errors.ProviderAuth, 1),
        (status(402, "Pay."), errors.ProviderPaymentRequired, 1),
        (status(429, "You exceeded your quota", error_code="insufficient_quota"), errors.ProviderPaymentRequired, 1),
        (status(404, "The model does not exist."), errors.ProviderModelUnknown, 1),
        (status(400, "Bad field."), errors.ProviderRefused, 1),
        (status(400, "Filtered.", error_code="content_filter"), errors.ProviderContentFilter, 1),
        (context_overflow(9000, 8192), errors.ContextOverflow, 1),
        (status(400, "the request exceeds the available context size"), errors.ContextOverflow, 1),
        (rate_limited(), errors.ProviderRateLimited, 5),
        (status(500), errors.ProviderUnavailable, 5),
        (overloaded(), errors.ProviderUnavailable, 5),
        (html_page(), errors.ProviderUnavailable, 5),
        (html_page(200), errors.ProviderBadAnswer, 1),
        (garbage(), errors.ProviderBadAnswer, 1),
        (garbage(streamed=False), errors.ProviderBadAnswer, 1),
        (raw_stream('data: {"nothing": "known"}\n'), errors.ProviderBadAnswer, 1),
        (raw_stream('data: ["no", "object"]\n'), errors.ProviderBadAnswer, 1),
        (raw_stream(), errors.ProviderBadAnswer, 1),
        (cut_stream(after=0), errors.ProviderUnavailable, 5),
        (cut_stream(after=1), errors.ProviderUnavailable, 5),
        (cut_stream(after=1, is_clean=True), errors.ProviderUnavailable, 5),
    ],
)
async def test_each_failure_raises_its_error(
    fake: FakeOpenAI,
    client: OpenAiChatClient,
    waits: RecordedWaits,
    fault: Fault,
    kind: type[errors.ProviderError],
    attempts: int,
) -> None:
    fake.script = lambda _: fault
    with pytest.raises(errors.ProviderError) as caught:
        await everything(client, hello())
    assert type(caught.value) is kind
    assert len(fake.requests) == attempts
    assert len(waits.taken) == attempts - 1
    assert caught.value.metadata["provider"] == "openai"
    assert KEY not in caught.value.message
    assert "<" not in caught.value.message
    assert "secret internals" not in caught.value.message


async def test_overflow_has_tokens_and_limit(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = [context_overflow(9000, 8192)]
    with pytest.raises(errors.ContextOverflow) as caught:
        await everything(client, hello())
    assert caught.value.metadata | {} == {"provider": "openai", "status": "400", "tokens": "9000", "limit": "8192"}
    assert caught.value.reason == "CONTEXT_WINDOW_OVERFLOW"


async def test_temporary_errors_are_retried(fake: FakeOpenAI, client: OpenAiChatClient, waits: RecordedWaits) -> None:
    fake.script = [rate_limited(retry_after=7), status(500), cut_stream(after=1), "Back again."]
    _, answer = await everything(client, hello())
    assert answer.content == (TextPart("Back again."),)
    assert waits.taken[0] == 7
    assert len({request.raw for request in fake.requests}) == 1


async def test_retry_after_beyond_budget_fails_at_once(
    fake: FakeOpenAI, client: OpenAiChatClient, waits: RecordedWaits
) -> None:
    fake.script = [rate_limited(retry_after=3600)]
    with pytest.raises(errors.ProviderRateLimited) as caught:
        await everything(client, hello())
    assert caught.value.retry_after == 3600
    assert caught.value.metadata["retry_after_seconds"] == "3600"
    assert waits.taken == []


@pytest.mark.parametrize("fault", [cut_stream(after=3), cut_stream(after=3, is_clean=True), error_event(after=3)])
async def test_broken_stream_is_not_retried_after_first_delta(
    fake: FakeOpenAI, client: OpenAiChatClient, waits: RecordedWaits, fault: Fault
) -> None:
    fake.script = lambda _: fault
    events: list[LlmEvent] = []
    with pytest.raises(errors.ProviderUnavailable):
        await collect(client, hello(), events)
    assert events
    assert not any(isinstance(event, LlmAnswer) for event in events)
    assert len(fake.requests) == 1
    assert waits.taken == []


async def test_missing_server_is_unavailable(waits: RecordedWaits) -> None:
    async with FakeOpenAI() as gone:
        base_url = gone.base_url
    adapter = OpenAiChatClient(at(base_url), sleep=waits)
    with pytest.raises(errors.ProviderUnavailable, match="cannot be reached"):
        await everything(adapter, hello())
    assert len(waits.taken) == 4
    await adapter.close()


@pytest.mark.parametrize("limits", [CallLimits(idle_seconds=0.05), CallLimits(total_seconds=0.05)])
async def test_hanging_server_times_out(fake: FakeOpenAI, limits: CallLimits) -> None:
    fake.script = [hang()]
    adapter = OpenAiChatClient(at(fake.base_url), limits=limits)
    with pytest.raises(errors.ProviderTimeout):
        await everything(adapter, hello())
    await adapter.close()


async def test_stalled_stream_times_out(fake: FakeOpenAI) -> None:
    first, never = asyncio.Event(), asyncio.Event()
    first.set()
    fake.script = [Reply(text="one piece and another", gates=[first, never])]
    adapter = OpenAiChatClient(at(fake.base_url), limits=CallLimits(total_seconds=0.2))
    events: list[LlmEvent] = []
    with pytest.raises(errors.ProviderTimeout):
        await collect(adapter, hello(), events)
    assert events == [TextDelta("one piec")]
    await adapter.close()


async def test_cancellation_propagates(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    arrived = asyncio.Event()

    def script(_: dict[str, Any]) -> Fault:
        arrived.set()
        return hang()

    fake.script = script
    task = asyncio.create_task(everything(client, hello()))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
