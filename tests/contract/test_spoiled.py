"""Good requests of the calls that write, each spoiled in one place: refused with a reason, or taken as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fuzzing.contract import call, methods, new_request, reason_of, service_of, spoiled
from mnemesh_testkit.timeouts import scaled

OWN_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}


def _good_requests() -> Mapping[str, Sequence[str]]:
    """Method → requests of the file beside this one."""
    found: dict[str, list[str]] = {}
    for part in (Path(__file__).parent / "good_requests.txt").read_text().split("\n== ")[1:]:
        method, _, text = part.partition("\n")
        found.setdefault(f"mnemesh.{method}", []).append(text)
    return found


GOOD = _good_requests()


@pytest.mark.timeout(scaled(300))
def test_good_requests_with_one_hostile_value_are_answered_or_refused(
    service: str, grpc_stub: Any, known: Mapping[str, Sequence[str]]
) -> None:
    calls = [
        (method, text_format.Parse(_with_ids(text, known), new_request(method)))
        for method in service_of(service).methods
        for text in GOOD.get(method.full_name, ())
    ]
    for method, good in calls:
        assert call(grpc_stub, method, good) is None, f"{method.full_name} refuses what is good:\n{good}"
    for method, good in calls:
        for place, request in spoiled(good):
            error: Any = call(grpc_stub, method, request)
            if error is not None:
                shown = f"{method.full_name}, {place}: {error.code()} {error.details()}"
                assert error.code() not in {*OWN_FAULT, grpc.StatusCode.DEADLINE_EXCEEDED}, shown
                assert reason_of(error), shown


def test_every_good_request_is_of_a_method_that_exists() -> None:
    assert len(GOOD) >= 20
    assert set(GOOD) <= {method.full_name for method in methods()}


def _with_ids(text: str, known: Mapping[str, Sequence[str]]) -> str:
    """The text with `<agent>` and so on replaced by ids that exist, and `<new-message>` by a new one."""
    for kind, ids in known.items():
        text = text.replace(f"<{kind}>", ids[-1])
    return re.sub(r"<new-(\w+)>", lambda found: new_id({"conversation": "conv"}.get(found[1], found[1])), text)
