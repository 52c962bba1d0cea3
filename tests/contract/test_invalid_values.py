"""Valid requests of every write RPC with one invalid value: executed, or refused with a reason."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest
from mnemesh_testkit.fuzzing.contract import call, methods, reason_of, service_of, spoiled
from mnemesh_testkit.timeouts import scaled

from .valid_requests import GOOD, good_requests

OWN_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}


@pytest.mark.timeout(scaled(300))
def test_valid_request_with_one_invalid_value_succeeds_or_is_refused(
    service: str, grpc_stub: Any, known: Mapping[str, Sequence[str]], is_full: bool, is_sweep: bool
) -> None:
    calls = [(method, good) for method in service_of(service).methods for good in good_requests(method, known)]
    for method, good in calls:
        assert call(grpc_stub, method, good) is None, f"{method.full_name} refuses what is good:\n{good}"
    for method, good in calls:
        for place, request in spoiled(good, 1 if is_sweep else 4 if is_full else 16):
            error: Any = call(grpc_stub, method, request)
            if error is not None:
                shown = f"{method.full_name}, {place}: {error.code()} {error.details()}"
                assert error.code() not in {*OWN_FAULT, grpc.StatusCode.DEADLINE_EXCEEDED}, shown
                assert reason_of(error), shown


def test_every_valid_request_is_for_an_existing_method() -> None:
    assert len(GOOD) >= 20
    assert set(GOOD) <= {method.full_name for method in methods()}
