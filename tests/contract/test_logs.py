"""No text of a request reaches a log, whether the request is executed, refused, or fails in the database."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import structlog
from google.protobuf.descriptor import FieldDescriptor
from mnemesh_kit import logs
from mnemesh_testkit.fuzzing.contract import call, new_request, service_of
from mnemesh_testkit.plugin import Sample
from mnemesh_testkit.timeouts import scaled

from .valid_requests import good_requests

CANARY = "Canary-7f3a9c"


def with_canary(request: Any) -> Iterator[Any]:
    """Yields copies of a request with the canary in one field each, whether the field is set or not."""
    for path in _texts(request.DESCRIPTOR):
        copy = type(request)()
        copy.CopyFrom(request)
        target = copy
        for field in path[:-1]:
            inner = getattr(target, field.name)
            target = inner if not field.is_repeated else inner[0] if inner else inner.add()
        _plant(target, path[-1])
        yield copy


def _texts(descriptor: Any, depth: int = 0) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in descriptor.fields:
        if field.name == "request_id" or depth > 4:
            continue
        if field.message_type is None:
            if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                yield (field,)
        elif field.message_type.GetOptions().map_entry:
            yield (field,)
        else:
            for rest in _texts(field.message_type, depth + 1):
                yield (field, *rest)


def _plant(target: Any, field: FieldDescriptor) -> None:
    value: Any = CANARY.encode() if field.type == FieldDescriptor.TYPE_BYTES else CANARY
    if field.message_type is not None:
        entry = field.message_type.fields_by_name
        if entry["key"].type == FieldDescriptor.TYPE_STRING and entry["value"].type == FieldDescriptor.TYPE_STRING:
            getattr(target, field.name)[CANARY] = CANARY
    elif field.is_repeated:
        getattr(target, field.name).append(value)
    else:
        setattr(target, field.name, value)


@pytest.mark.timeout(scaled(300))
def test_no_text_of_a_request_is_logged(
    service: str,
    grpc_stub: Any,
    known: Mapping[str, Sequence[str]],
    caplog: pytest.LogCaptureFixture,
    sample: Sample,
) -> None:
    caplog.set_level(logging.WARNING)
    sent = 0
    with structlog.testing.capture_logs() as lines:
        for method in service_of(service).methods:
            requests = [
                planted
                for good in good_requests(method, known) or [new_request(method)]
                for planted in with_canary(good)
            ]
            for request in sample(requests, 9):
                call(grpc_stub, method, request, timeout=10.0)
                sent += 1
    assert sent
    assert any(line["event"] == "call" for line in lines)
    shown = [logs._json(None, "", logs.TRACES(None, "", dict(line))).decode() for line in lines]
    shown += [logging.Formatter().format(record) for record in caplog.records]
    assert [line for line in shown if CANARY in line] == []
