"""The errors for refusals of each vendor, from samples of their responses."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from mnemesh_orchestrator.llm.errors import error_from_response, retry_after_seconds
from mnemesh_orchestrator.loop.rules import failure
from mnemesh_orchestrator.model.runs import StopReason

REFUSALS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "provider_errors.json").read_text())


def body(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


@pytest.mark.parametrize("sample", REFUSALS, ids=lambda sample: f"{sample['vendor']}-{sample['error']}")
def test_each_refusal_has_reason_code_and_retryability(sample: dict[str, Any]) -> None:
    error = error_from_response(sample["vendor"], sample["status"], sample["body"], sample.get("headers"))
    assert error.retry_after == sample.get("wait", error.retry_after)
    assert type(error).__name__ == sample["error"]
    assert error.code is grpc.StatusCode[sample["code"]]
    reason, received = failure(error)
    assert (reason, received.reason) == (StopReason[sample["stop"]], error.reason)
    assert received.metadata.get("status") == (None if sample["status"] is None else str(sample["status"]))
    assert "sk-secret" not in received.message
    assert "<html" not in received.message


def test_overflow_has_figures() -> None:
    longest = {(each.get("tokens"), each.get("limit")) for each in (_figures(sample) for sample in REFUSALS)}
    assert {("9000", "8192"), ("210000", "200000")} <= longest


def _figures(sample: dict[str, Any]) -> dict[str, str]:
    return dict(error_from_response(sample["vendor"], sample["status"], sample["body"]).metadata)


@pytest.mark.parametrize(
    ("headers", "said", "seconds"),
    [
        ({"retry-after": "7"}, {}, 7.0),
        ({"retry-after": "2.5"}, {}, 2.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, {}, 1.5),
        ({"retry-after": "soon"}, {}, None),
        ({"retry-after": "-1"}, {}, None),
        ({}, body("Rate limit reached. Please try again in 7.66s."), 7.66),
        ({}, body("Rate limit reached. Please try again in 20ms."), 0.02),
        ({}, body("Rate limit reached. Please try again in 6m0s."), 360.0),
        ({}, body("Rate limit reached. Please try again in 1h12m3.5s."), 4323.5),
        ({}, body("Rate limit reached. Please try again in 1m30s."), 90.0),
        ({}, body("Please try again after 2 seconds"), 2.0),
        ({}, body("Please try again after 1 second."), 1.0),
        ({}, body("Please retry after 26 sec."), 26.0),
        ({}, body("Retry after 500 ms."), 0.5),
        ({}, body("Try again in 2 minutes and 30 seconds."), 150.0),
        ({}, body("Try again after 5 min"), 300.0),
        ({}, body("Please wait 10 seconds before you retry in 3 months."), 10.0),
        ({}, body("Do not retry in 2 models. Try again in 4s."), 4.0),
        ({}, body(f"Please try again in {'9' * 400}m."), None),
        ({}, {"error": {"message": "Slow down.", "retry_after": "9" * 400}}, None),
        ({}, body("Please try again later."), None),
        ({}, [{"error": {"status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "34.5s"}]}}], 34.5),
        ({"retry-after": "3"}, body("Please try again in 7.66s."), 3.0),
    ],
)
def test_retry_after(headers: dict[str, str], said: object, seconds: float | None) -> None:
    error = error_from_response("vendor", 429, said, headers)
    assert error.retry_after == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"error": '])
def test_a_body_that_is_nested_deeply_is_an_error_of_the_provider(opening: str, depth: int) -> None:
    said = opening * depth + "1" + ("]" if opening == "[" else "}") * depth
    for body in (said, said.encode()):
        error = error_from_response("vendor", 500, body)
        assert (type(error).__name__, error.metadata["status"]) == ("ProviderUnavailable", "500")


def test_a_code_is_cut_before_it_is_matched() -> None:
    code = "invalid" * 100 + "image"
    assert type(error_from_response("vendor", 500, {"code": "invalid_image"})).__name__ == "ProviderRefused"
    assert type(error_from_response("vendor", 500, {"code": code})).__name__ == "ProviderUnavailable"


def test_tokens_are_left_out_even_if_they_are_cut() -> None:
    assert error_from_response(
        "vendor", 400, body("Bad token eyJhbGciOiJIUzI1NiJ9, see eyJhbGciOiJI.eyJzdWI.c2ln.")
    ).message == ("vendor answered 400: Bad token [key], see [key]")


def test_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3500 < (retry_after_seconds({"retry-after": soon}) or 0) <= 3600
    past = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    assert retry_after_seconds({"retry-after": past}) == 0.0
