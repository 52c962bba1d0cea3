"""No request makes a server fail by itself: whatever comes is answered, or refused with a reason of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest
from mnemesh_testkit.fuzzing.contract import call, hostile_request, reason_of, service_of
from mnemesh_testkit.timeouts import scaled

EXAMPLES = 20
OWN_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}


@pytest.mark.timeout(scaled(300))
def test_hostile_requests_are_answered_or_refused(
    service: str, grpc_stub: Any, known: Mapping[str, Sequence[str]]
) -> None:
    for method in service_of(service).methods:
        # what other requests are to find is not deleted
        ids = {} if method.name.startswith(("Delete", "Erase")) else known
        for seed in range(EXAMPLES):
            request = hostile_request(method, seed, ids)
            error: Any = call(grpc_stub, method, request)
            if error is None:
                continue
            shown = f"{method.full_name}, seed {seed}: {error.code()} {error.details()}\n{str(request)[:2000]}"
            assert error.code() not in OWN_FAULT, shown
            assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, shown
            assert reason_of(error), shown
