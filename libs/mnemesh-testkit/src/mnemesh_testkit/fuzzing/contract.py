"""The contracts as data: every service and method, hostile requests, and the details of errors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from mnemesh.types.v1 import error_reason_pb2

from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

_LONG: Final = "long " * 4_000
HOSTILE: Final = (
    "",
    " ",
    "\0",
    "a\0b",
    "\u202eright to left",
    "😀" * 40,
    "'; DROP TABLE blocks; --",
    '" OR 1=1 --',
    "%_*?[",
    "../../../../etc/passwd",
    "{{name}} {CORE_MEMORY} {0} %s %(x)s ${HOME}",
    "<value></memory_blocks>",
    '{"unclosed": [',
    "null",
    "[]",
    "\ud7ff\ue000\uffff",
    "\r\n\t\x1b[31m",
    "NaN",
    "9" * 400,
    "2026-13-45T99:99",
    "Mars/Olympus_Mons",
    _LONG,
)
_INTEGERS: Final = (0, 1, -1, 7, 1_000, 1_001, 2**31 - 1, -(2**31))
_LONGS: Final = (*_INTEGERS, 2**63 - 1, -(2**63))
_FLOATS: Final = (0.0, -1.0, 0.5, 1e308, float("nan"), float("inf"), float("-inf"))


def service_of(name: str) -> ServiceDescriptor:
    """Returns the descriptor of a proto service by its full name."""
    import_module(PROTO_SERVICES[name][1])
    return descriptor_pool.Default().FindServiceByName(name)


def methods() -> Iterator[MethodDescriptor]:
    """Yields every method of every service."""
    for name in PROTO_SERVICES:
        yield from service_of(name).methods


def reads(method: MethodDescriptor) -> bool:
    """Returns whether a method has no side effects."""
    return bool(method.GetOptions().idempotency_level == 1)


def new_request(method: MethodDescriptor) -> Any:
    """Returns an empty request."""
    return message_factory.GetMessageClass(method.input_type)()


def hostile_request(method: MethodDescriptor, seed: int, known: Mapping[str, Sequence[str]]) -> Any:
    """Returns a request with hostile values. The same seed produces the same request.

    Args:
        method: the method to call.
        seed: varies it.
        known: prefix ("agent") → ids that exist, some fields for such ids get one of them.
    """
    chance = random.Random(f"{method.full_name}/{seed}")
    request = new_request(method)
    # Every second request is hostile in one or two fields only, so that it passes more checks.
    _fill(request, chance, known, share=0.7 if seed % 2 else 0.2, depth=0)
    return request


def spoiled(request: Any) -> Iterator[tuple[str, Any]]:
    """Yields copies of a valid request with one scalar replaced by a hostile value, each with a description."""
    for path in _scalars(request):
        *parents, (field, index) = path
        hostile: Sequence[Any] = _spoils(field)
        for value in hostile:
            copy = type(request)()
            copy.CopyFrom(request)
            target = copy
            for parent, place in parents:
                target = getattr(target, parent.name) if place is None else getattr(target, parent.name)[place]
            if index is None:
                setattr(target, field.name, value)
            else:
                getattr(target, field.name)[index] = value
            yield f"{'.'.join(step.name for step, _ in path)} = {value!r}"[:200], copy


def call(stub: Any, method: MethodDescriptor, request: Any, *, timeout: float = 30.0) -> grpc.RpcError | None:
    """Calls a method of a blocking stub and returns the error or None. Of a stream it reads the first messages."""
    try:
        answer = getattr(stub, method.name)(iter([request]) if method.client_streaming else request, timeout=timeout)
        if method.server_streaming:
            for _, _event in zip(range(3), answer, strict=False):
                pass
            answer.cancel()
    except grpc.RpcError as error:
        return error
    return None


def reason_of(error: Any) -> str:
    """Returns the reason of the ErrorInfo, which must be in the contract; "" without an ErrorInfo."""
    info = _detail(error, error_details_pb2.ErrorInfo)
    if info is None or f"ERROR_REASON_{info.reason}" not in error_reason_pb2.ErrorReason.keys():  # noqa: SIM118
        return ""
    return str(info.reason)


def field_of(error: Any) -> str:
    """The field that a BadRequest names."""
    bad = _detail(error, error_details_pb2.BadRequest)
    return "" if bad is None else str(bad.field_violations[0].field)


def _detail(error: Any, kind: Any) -> Any:
    status = rpc_status.from_call(error)
    for packed in status.details if status is not None else ():
        if packed.Is(kind.DESCRIPTOR):
            detail = kind()
            packed.Unpack(detail)
            return detail
    return None


def _fill(message: Any, chance: random.Random, known: Mapping[str, Sequence[str]], share: float, depth: int) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        if share < 0.5 and not _repeated(field) and (ids := _known_ids(field, known)):
            setattr(message, field.name, chance.choice(ids))
            continue
        if field.name == "request_id" or depth > 4 or chance.random() > max(share, 0.35 * min(depth, 1)):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field.message_type, chance)
        elif field.message_type is not None:
            target = getattr(message, field.name)
            for _ in range(chance.randint(1, 2) if _repeated(field) else 1):
                _fill(target.add() if _repeated(field) else target, chance, known, share, depth + 1)
            if not _repeated(field):
                target.SetInParent()
        elif _repeated(field):
            getattr(message, field.name).extend(_value(field, chance, known) for _ in range(chance.randint(1, 3)))
        else:
            setattr(message, field.name, _value(field, chance, known))


def _known_ids(field: FieldDescriptor, known: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The ids that fit a field by its name."""
    if field.type != FieldDescriptor.TYPE_STRING or not known:
        return ()
    if field.name == "id":
        owner = field.containing_type
        return known.get(owner.name.lower(), ()) if owner is not None else ()
    prefix = next((p for p in known if field.name.removesuffix("s").endswith(f"{p}_id")), None)
    return known[prefix] if prefix is not None else ()


def _fill_map(entries: Any, entry: Descriptor, chance: random.Random) -> None:
    value = entry.fields_by_name["value"]
    if value.type == FieldDescriptor.TYPE_STRING:
        entries[chance.choice(HOSTILE)] = chance.choice(HOSTILE)


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _value(field: FieldDescriptor, chance: random.Random, known: Mapping[str, Sequence[str]]) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            ids = _known_ids(field, known)
            if ids:
                missing = f"{ids[0].partition('-')[0]}-00000000-0000-4000-8000-00000000beef"
                return chance.choice([*ids, *ids, missing, *HOSTILE[:4]])
            return chance.choice(HOSTILE)
        case FieldDescriptor.TYPE_BYTES:
            return chance.choice((b"", b"\0\xff\xfe", b"\x89PNG"))
        case FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return chance.choice(_FLOATS)
        case FieldDescriptor.TYPE_ENUM:
            known_numbers = [value.number for value in field.enum_type.values] if field.enum_type is not None else []
            return chance.choice([*known_numbers, 999])
        case FieldDescriptor.TYPE_INT64 | FieldDescriptor.TYPE_SINT64 | FieldDescriptor.TYPE_SFIXED64:
            return chance.choice(_LONGS)
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_UINT64:
            return chance.choice((0, 1, 2**32 - 1))
        case _:
            return chance.choice(_INTEGERS)


def _scalars(message: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every scalar that a message sets, as (field, index or None) from the top."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        places: Sequence[int | None] = range(len(value)) if _repeated(field) else (None,)
        for place in places:
            item = value if place is None else value[place]
            if field.message_type is not None:
                yield from _scalars(item, (*above, (field, place)))
            elif field.name != "request_id":
                yield (*above, (field, place))


def _spoils(field: FieldDescriptor) -> Sequence[Any]:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return HOSTILE
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return _FLOATS
        case FieldDescriptor.TYPE_ENUM:
            return (0, 999)
        case FieldDescriptor.TYPE_INT64:
            return _LONGS
        case FieldDescriptor.TYPE_INT32:
            return _INTEGERS
        case _:
            return ()
