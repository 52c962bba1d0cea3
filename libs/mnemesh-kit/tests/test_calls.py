"""Calls of a server: errors, metadata, retries, malformed requests and deadlines."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
import structlog
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit import errors, interceptors
from mnemesh_kit.access import rule_of, rules_of
from mnemesh_kit.call_context import (
    DEFAULT_PRINCIPAL,
    Principal,
    as_principal,
    current_correlation_id,
    current_principal,
    remaining,
    set_correlation_id,
    set_remaining,
)

from .served_blocks import GET, ME, SERVICE, FakeServicer, ShopIsClosed, calling, raising, serving

pytestmark = pytest.mark.usefixtures("transport")


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidArgument, errors.NotFound, errors.AlreadyExists, errors.FailedPrecondition, errors.Aborted,
        errors.ResourceExhausted, errors.Unavailable, errors.DeadlineExceeded, errors.Unimplemented,
        errors.PermissionDenied, errors.Unauthenticated, errors.RequestIdReused, errors.PageTokenInvalid,
    ],
)  # fmt: skip
async def test_typed_error_is_raised_by_the_client_unchanged(kind: type[errors.MnemeshError]) -> None:
    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(kind("Grüße, %41 \n 漢", field="block_id", resource_id="7"))
        with pytest.raises(errors.MnemeshError) as raised:
            await stub.GetBlock(GET)
    assert type(raised.value) is kind
    assert (raised.value.message, raised.value.reason) == ("Grüße, %41 \n 漢", kind.reason)
    assert raised.value.metadata == {"field": "block_id", "resource_id": "7"}


async def test_error_of_a_service_is_raised_as_its_class_if_the_client_knows_it() -> None:
    async with serving() as service:
        service.servicer.respond = raising(ShopIsClosed("bakery"))
        async with calling(service.address, errors=[ShopIsClosed]) as stub:
            with pytest.raises(ShopIsClosed) as raised:
                await stub.GetBlock(GET)
            assert raised.value.metadata == {"shop": "bakery"}
        async with calling(service.address) as stub:
            with pytest.raises(errors.FailedPrecondition) as other:
                await stub.GetBlock(GET)
            assert type(other.value) is errors.FailedPrecondition
            assert other.value.reason == "SHOP_IS_CLOSED"


async def test_unexpected_error_is_internal_and_its_details_are_only_logged() -> None:
    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(ValueError("the password is tiger"))
        with structlog.testing.capture_logs() as logs, pytest.raises(errors.Internal) as raised:
            await stub.GetBlock(GET)
    assert "tiger" not in str(raised.value)
    [unexpected] = [entry for entry in logs if entry["log_level"] == "error"]
    assert unexpected["exc_info"]
    assert raised.value.metadata["correlation_id"]


def _changed_later() -> errors.MnemeshError:
    error = errors.InvalidArgument("plain")
    error.message = error.metadata["quote"] = "\ud800"
    return error


def _not_encodable() -> errors.MnemeshError:
    error = errors.InvalidArgument("plain")
    error.metadata["count"] = 7  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("half: \ud800", field="arguments", quote="\ude00\0"), grpc.StatusCode.INVALID_ARGUMENT),
        (ValueError("\ud800"), grpc.StatusCode.INTERNAL),
        (_changed_later(), grpc.StatusCode.INVALID_ARGUMENT),
        (_not_encodable(), grpc.StatusCode.INTERNAL),
    ],
)
async def test_call_ends_for_any_text_in_its_error(error: Exception, code: grpc.StatusCode) -> None:
    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(error)
        with pytest.raises(errors.MnemeshError) as raised:
            await stub.GetBlock(GET, timeout=10)
    assert raised.value.code is code


async def test_missing_method_is_unimplemented() -> None:
    async with serving() as service, calling(service.address) as stub:
        with pytest.raises(errors.Unimplemented):
            await stub.ListBlocks(rpc.ListBlocksRequest())


async def test_stopped_server_is_unavailable() -> None:
    async with serving() as service:
        address = service.address
    async with calling(address) as stub:
        with pytest.raises(errors.Unavailable):
            await stub.GetBlock(GET)


async def test_correlation_id_and_the_principal_reach_the_server() -> None:
    seen: list[object] = []

    async def record(_: Any) -> str:
        seen.append((current_correlation_id(), current_principal()))
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = record
        set_correlation_id("trace-me")
        with as_principal(ME), structlog.testing.capture_logs() as logs:
            await stub.GetBlock(GET)
        await stub.GetBlock(GET)
    assert seen == [("trace-me", ME), ("trace-me", DEFAULT_PRINCIPAL)]
    assert [entry["code"] for entry in logs if entry["event"] == "call"] == ["OK"]


async def test_a_call_is_logged_after_its_answer_is_sent_and_an_error_before() -> None:
    """No caller waits for the log of its call. A failed one is logged even if the connection is gone."""
    order: list[str] = []

    def serialized(response: rpc.GetBlockResponse) -> bytes:
        order.append("answer")
        return response.SerializeToString()

    def add(servicer: FakeServicer, server: Any) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            servicer.GetBlock, request_deserializer=rpc.GetBlockRequest.FromString, response_serializer=serialized
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"GetBlock": handler}),))

    def note(_logger: Any, _method: str, entry: Any) -> Any:
        if entry["event"] == "call":
            order.append(entry["code"])
        return entry

    async with serving(add) as service, calling(service.address) as stub:
        with structlog.testing.capture_logs(processors=[note]):
            await stub.GetBlock(GET)
            service.servicer.respond = raising(errors.NotFound("no"))
            with pytest.raises(errors.NotFound):
                await stub.GetBlock(GET)
            assert order == ["answer", "OK", "NOT_FOUND"]


async def test_successful_calls_that_services_repeat_all_the_time_are_details(monkeypatch: pytest.MonkeyPatch) -> None:
    polled = replace(rule_of(f"/{SERVICE}/GetBlock"), is_polled=True)
    monkeypatch.setattr(interceptors, "rule_of", lambda _: polled)
    async with serving() as service, calling(service.address) as stub:
        with structlog.testing.capture_logs() as logs:
            await stub.GetBlock(GET)
            service.servicer.respond = raising(errors.NotFound("no"))
            with pytest.raises(errors.NotFound):
                await stub.GetBlock(GET)
    assert [entry["log_level"] for entry in logs if entry["event"] == "call"] == ["debug", "info"]
    assert rules_of()["/mnemesh.agents.v1.RunService/ClaimCallbacks"].is_polled


async def test_principal_with_a_malformed_id_is_refused() -> None:
    async with serving() as service, calling(service.address) as stub:
        with as_principal(Principal("org-1", "user-1")), pytest.raises(errors.InvalidArgument):
            await stub.GetBlock(GET)


async def test_channel_adds_a_request_id_without_changing_the_message() -> None:
    seen: list[str] = []

    async def record(request: Any) -> str:
        seen.append(request.request_id)
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = record
        request = rpc.DeleteBlockRequest(block_id="x")
        await stub.DeleteBlock(request)
        await stub.DeleteBlock(request)
        await stub.DeleteBlock(rpc.DeleteBlockRequest(request_id="mine"))
    assert request.request_id == ""
    assert len(set(seen)) == 3
    assert all(seen)
    assert seen[2] == "mine"


@pytest.mark.parametrize("method", ["GetBlock", "DeleteBlock"])
async def test_repeatable_calls_are_retried_while_a_server_is_unavailable(method: str) -> None:
    ids: list[str] = []

    async def fail_twice(request: Any) -> str:
        ids.append(getattr(request, "request_id", ""))
        if len(ids) < 3:
            raise errors.Unavailable("not yet")
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = fail_twice
        await getattr(stub, method)(GET if method == "GetBlock" else rpc.DeleteBlockRequest())
        assert service.servicer.calls == 3
    assert len(set(ids)) == 1


async def test_final_error_is_not_retried() -> None:
    class Final(errors.Unavailable):
        final = True

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = raising(Final("All retries failed."))
        with pytest.raises(errors.Unavailable, match="All retries failed"):
            await stub.GetBlock(GET)
        assert service.servicer.calls == 1


@pytest.mark.parametrize("raw", [b"\x0a\x02\xff\xfe", b"\xff\xff\xff", b"\x0a\x7fshort"])
async def test_malformed_bytes_are_an_invalid_argument(raw: bytes) -> None:
    async with serving() as service, grpc.aio.insecure_channel(service.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/GetBlock", request_serializer=bytes, response_deserializer=bytes)(raw)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "UTF-8" in (await call.details() or "")
        assert service.servicer.calls == 0


async def test_deadline_ends_the_call_and_its_handler() -> None:
    ended = asyncio.Event()

    async def wait(_: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with serving() as service, calling(service.address, deadline=0.05) as stub:
        service.servicer.respond = wait
        with pytest.raises(errors.DeadlineExceeded):
            await stub.GetBlock(GET)
        await asyncio.wait_for(ended.wait(), 5)


async def test_outgoing_call_inherits_the_deadline_of_the_incoming_one() -> None:
    left: list[float | None] = []

    async def record(_: Any) -> str:
        left.append(remaining())
        return ""

    async with serving() as service, calling(service.address) as stub:
        service.servicer.respond = record
        set_remaining(3)
        try:
            await stub.GetBlock(GET, timeout=60)
            set_remaining(-1)
            with pytest.raises(errors.DeadlineExceeded):
                await stub.GetBlock(GET)
        finally:
            set_remaining(None)
    assert left[0] is not None
    assert left[0] < 5
    assert len(left) == 1
