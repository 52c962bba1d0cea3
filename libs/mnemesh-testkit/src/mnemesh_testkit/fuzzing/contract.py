"""The contract as a source of calls, and what every answer to them must be."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from mnemesh.types.v1 import error_reason_pb2

from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

_ANNOTATIONS: Final = (
    "int", "str", "float", "bool", "dict", "list", "None", "Any", "object", "bytes", "tuple", "set", "Exception", "f",
    "...", "()", "[]", "{}", "''", "'list['", "'\\ud800'", "1", "-1", "1j",
    "9" * 400, "9" * 5_000, "lambda: 0", "a.b.c",
    "__import__('os')",
    "b'x'", "f'{1}'", "not x", "x if y else z", "[x for x in y]", "{'a': 1}", "'" + "x" * 2_000 + "'",
)  # fmt: skip
_GENERICS: Final = (
    "list", "dict", "set", "tuple", "Optional", "Union", "Literal", "Annotated", "Callable", "type", "Sequence", "x",
    "1",
)  # fmt: skip
_DEFAULTS: Final = ("None", "1", "'x'", "[]", "{}", "...", "x", "1e400", "-1", "9" * 5_000, "'\\ud800'", "(1,)", "f()")
_DOCSTRINGS: Final = (
    "F.", "", "F.\n\n    Args:\n        a: x.", "Args:",
    "F.\n\n    Args:\n        a (int): x.\n\n    Args:\n        b: y.",
    "F.\n\n    Args:\n        nobody: x.", "F.\n\n    Returns:", ":param a: x",
    "F.\n\n    Parameters\n    ----------\n    a : int",
    "\\ud800", "F.\n\n    Args:\n    a: x\n      y:\n z", "x" * 5_000, "F.\n\n    Raises:\n        :",
)  # fmt: skip
_KEYWORDS: Final = (
    "type", "properties", "required", "items", "enum", "anyOf", "allOf", "oneOf", "not", "$ref", "$defs", "pattern",
    "format", "default", "additionalProperties", "minimum", "maxLength", "name", "description", "parameters", "strict",
    "a", "", "label", "\ud800",
)  # fmt: skip
_LEAVES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 2**53, 2**64, -(2**63), 10**400, "", "object", "string", "array", "nothing",
    "#/$defs/a", "#",
    "\ud800", "\udfff", "a\0b", "(", "(a+)+$", "x" * 3_000, [], {}, [[]], ["a"], {"type": "object"},
)  # fmt: skip


def composed_json(chance: random.Random) -> str:
    """Returns the text of a JSON object, often one that looks like a schema."""
    value = (
        {"type": "object", "properties": {"a": _json(chance, 3)}} if chance.random() < 0.6 else {"a": _json(chance, 4)}
    )
    if chance.random() < 0.5:
        value = {"name": "f", "description": "F.", "parameters": value}
    for _ in range(chance.choice((0, 1, 1, 2))):
        value[chance.choice(_KEYWORDS)] = _json(chance, 2)
    return json.dumps(value)


def _json(chance: random.Random, depth: int) -> Any:
    if depth <= 0 or chance.random() < 0.3:
        return chance.choice(_LEAVES)
    if chance.random() < 0.3:
        return [_json(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return {chance.choice(_KEYWORDS): _json(chance, depth - 1) for _ in range(chance.randint(0, 4))}


def composed_source(chance: random.Random) -> str:
    """Returns the source of a function with parameters of random types, defaults and descriptions."""
    parameters = []
    for name in chance.sample(("a", "b", "c", "self", "agent_state", "ä", "a"), chance.randint(0, 3)):
        annotation = f": {_annotation(chance, 3)}" if chance.random() < 0.8 else ""
        default = f" = {chance.choice(_DEFAULTS)}" if chance.random() < 0.3 else ""
        parameters.append(f"{chance.choice(('', '', '', '*', '**'))}{name}{annotation}{default}")
    returned = f" -> {_annotation(chance, 2)}" if chance.random() < 0.4 else ""
    head = chance.choice(
        ("", "from typing import *\n", "import nothing\n", "from __future__ import annotations\n", "@x\n")
    )
    keyword = chance.choice(("def", "def", "def", "async def"))
    quotes = '"' * 3
    return (
        f"{head}{keyword} f({', '.join(parameters)}){returned}:\n"
        f"    {quotes}{chance.choice(_DOCSTRINGS)}{quotes}\n    return {chance.choice(_DEFAULTS)}\n"
    )


def _annotation(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth <= 0 or kind < 0.4:
        return chance.choice(_ANNOTATIONS)
    if kind < 0.75:
        inner = ", ".join(_annotation(chance, depth - 1) for _ in range(chance.randint(0, 3)))
        return f"{chance.choice(_GENERICS)}[{inner or '()'}]"
    if kind < 0.9:
        return " | ".join(_annotation(chance, depth - 1) for _ in range(chance.choice((2, 2, 3, 400))))
    return f"'{chance.choice(_GENERICS)}[{chance.choice(_ANNOTATIONS)}'"


_LONG: Final = "long " * 4_000
TEXTS: Final = (
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
    "9" * 5_000,
    "2026-13-45T99:99",
    "0000-00-00",
    "9999-12-31T23:59:60+99:99",
    "Mars/Olympus_Mons",
    "../UTC",
    "(" * 500,
    "a" * 5_000 + "!",
    "-" * 300,
    "e\u0301" * 2_000,
    _LONG,
)


def _nested_json(depth: int, opening: str, inner: str, closing: str) -> str:
    return opening * depth + inner + closing * depth


JSON: Final = (
    "{}",
    "null",
    "[]",
    '""',
    "1",
    "true",
    "{",
    '{"\\ud800": 1}',
    '{"a": "\\udfff"}',
    '{"a": "\\u0000"}',
    '{"\\u0000": 1}',
    '{"a": 1e400}',
    '{"a": -1e400}',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": ' + "9" * 400 + "}",
    '{"a": ' + "9" * 5_000 + "}",
    '{"a": 1, "a": 2}',
    '{"a": ' + _nested_json(90, "[", "", "]") + "}",
    '{"a": ' + _nested_json(300, "[", "", "]") + "}",
    _nested_json(300, '{"a":', "1", "}"),
    _nested_json(5_000, '{"a":', "1", "}"),
    _nested_json(100_000, "[", "", "]"),
    '{"a": "' + "x" * 200_000 + '"}',
    "{" + ",".join(f'"{number}": {number}' for number in range(2_000)) + "}",
    '{"label": "human", "new_str": "\\ud83d\\ude00"}',
    '{"a": {"b": [1, 2.5, null, true, "\\u2028"]}}',
)
SCHEMAS: Final = (
    *JSON,
    '{"type": 1}',
    '{"type": "object", "properties": []}',
    '{"type": "object", "properties": {"a": null}}',
    '{"type": "object", "properties": {"a": {"type": "nothing"}}}',
    '{"type": "object", "required": "a"}',
    '{"type": "object", "required": [1, null, {}]}',
    '{"type": "object", "properties": {"a": {"$ref": "#"}}}',
    '{"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}',
    '{"$ref": "http://127.0.0.1:1/x"}',
    '{"$schema": "http://nowhere/"}',
    '{"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}',
    '{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}',
    '{"type": "object", "properties": {"a": {"enum": []}}}',
    '{"type": "object", "properties": {"a": {"minimum": "x"}}}',
    '{"type": ["object", "null"]}',
    '{"name": "f", "parameters": {"type": "object", "properties": {}}}',
    '{"name": 1, "parameters": 2}',
    '{"name": "f", "description": [], "parameters": {"type": "object", "properties": {"a": 1}}}',
    '{"name": "f", "parameters": null}',
    '{"name": "\\ud800", "parameters": {}}',
    '{"name": "f", "parameters": {"type": "object", "properties": '
    + _nested_json(200, '{"a":{"properties":', "{}", "}}")
    + "}}",
)
SOURCES: Final = (
    "def f(): pass",
    "def f(a):\n    '''F.'''\n    return a",
    "def f(a: int = 9999999999999999999999) -> str:\n    '''F.\n\n    Args:\n        a: x.\n    '''\n    return ''",
    "def f(a: 'list[') -> str:\n    '''F.\n\n    Args:\n        a: x.\n    '''\n    return ''",
    "def f(a: list[list[list[list[int]]]]):\n    '''F.\n\n    Args:\n        a: x.\n    '''",
    "def f(*args, **kwargs): '''F.'''",
    "async def f(): '''F.'''",
    "class A: pass",
    "lambda: 0",
    "def f(",
    "\tdef f(): pass",
    "def f(a=" + "9" * 5_000 + "): '''F.'''",
    "x = " + "(" * 300 + ")" * 300 + "\ndef f(): '''F.'''",
    "x = " + "-" * 3_000 + "1\ndef f(): '''F.'''",
    "x = " + "+".join(["1"] * 3_000) + "\ndef f(): '''F.'''",
    "def f(a: " + " | ".join(["int"] * 1_500) + "): '''F.'''",
    "def f(a: Annotated[()]): '''F.'''",
    "def f(a: Literal[{[]}]): '''F.'''",
    "def f(a: Literal['\\ud800']) -> str: '''F.'''",
    "def f(a: dict[list, int], b: tuple[()], c: Optional[()]): '''F.'''",
    "def f(a):\n    '''F.\n\n    Args:\n        a: x.\n\n    Args:\n        a: y.\n    '''",
    "def f(a):\n    '''Args:'''",
    "def f(a, a): '''F.'''",
    "def f(): '''\ud7ff\0'''",
    "# -*- coding: utf-7 -*-\ndef f(): pass",
    "\ufeffdef f(): '''F.'''",
    "import os; os.system('x')\ndef f(): '''F.'''",
)
MASKS: Final = ("", ".", "*", "id", "name.x", "no_such_field", "metadata", "update_time", "a" * 10_000, "näme", "value")
_JSON_NAMES: Final = ("arguments", "metadata", "extra", "options", "settings", "tool_args", "tool_result", "json")
INTEGERS: Final = (0, 1, -1, 7, 100, 1_000, 1_001, 2**31 - 1, -(2**31))
LONGS: Final = (
    *INTEGERS,
    2**62,
    2**63 - 1,
    -(2**63),
    253_402_300_799,
    253_402_300_800,
    -62_135_596_800,
    -62_135_596_801,
)
FLOATS: Final = (0.0, -0.0, -1.0, 0.5, 1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))


def texts_of(field: FieldDescriptor) -> Sequence[str]:
    """Returns the hostile texts for a string field, by its name."""
    name = field.name
    if name == "paths":
        return MASKS
    if name == "source_code":
        return SOURCES
    if name.endswith("schema") or name == "parameters":
        return SCHEMAS
    return JSON if name.endswith(_JSON_NAMES) else TEXTS


def scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    """Returns a hostile value for a scalar field of any type."""
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _text(field, chance)
        case FieldDescriptor.TYPE_BYTES:
            return chance.choice((b"", b"\0\xff\xfe", b"\x89PNG", b"x" * 100_000))
        case FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return chance.choice(FLOATS)
        case FieldDescriptor.TYPE_ENUM:
            known = [value.number for value in field.enum_type.values] if field.enum_type is not None else []
            return chance.choice([*known, 999, -1, 2**31 - 1])
        case FieldDescriptor.TYPE_INT64 | FieldDescriptor.TYPE_SINT64 | FieldDescriptor.TYPE_SFIXED64:
            return chance.choice(LONGS)
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_FIXED32:
            return chance.choice((0, 1, 2**32 - 1))
        case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
            return chance.choice((0, 1, 2**63, 2**64 - 1))
        case _:
            return chance.choice(INTEGERS)


def _text(field: FieldDescriptor, chance: random.Random) -> str:
    texts = texts_of(field)
    if texts is SOURCES and chance.random() < 0.6:
        return composed_source(chance)
    if texts in (JSON, SCHEMAS) and chance.random() < 0.5:
        return composed_json(chance)
    return chance.choice(texts if chance.random() < 0.9 else TEXTS)


LONG_LISTS: Final = (101, 1_001, 10_001)
"""Lengths of lists that are beyond a bound."""


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


def spoiled(request: Any, every: int = 1) -> Iterator[tuple[str, Any]]:
    """Yields copies of a valid request with one scalar replaced by a hostile value, each with a description.

    Args:
        request: the valid request.
        every: only each so manieth value is used; another one for each field.
    """
    for number, path in enumerate(_scalars(request)):
        *parents, (field, index) = path
        hostile: Sequence[Any] = _spoils(field)
        for value in hostile[number % every :: every]:
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
            many = 1_001 if chance.random() < 0.002 else chance.randint(1, 2)
            for _ in range(many if _repeated(field) else 1):
                _fill(target.add() if _repeated(field) else target, chance, known, share, depth + 1)
            if not _repeated(field):
                target.SetInParent()
        elif _repeated(field):
            length = chance.choice(LONG_LISTS) if chance.random() < 0.02 else chance.randint(1, 3)
            getattr(message, field.name).extend(_values(field, chance, known, length))
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
        for _ in range(chance.choice((1, 1, 1, 2, 1_001))):
            entries[f"{chance.choice(TEXTS)[:100]}{chance.random()}"] = chance.choice(TEXTS)


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _value(field: FieldDescriptor, chance: random.Random, known: Mapping[str, Sequence[str]]) -> Any:
    ids = _known_ids(field, known)
    if ids:
        missing = f"{ids[0].partition('-')[0]}-00000000-0000-4000-8000-00000000beef"
        return chance.choice([*ids, *ids, missing, *TEXTS[:4]])
    return scalar(field, chance)


def _values(
    field: FieldDescriptor, chance: random.Random, known: Mapping[str, Sequence[str]], length: int
) -> list[Any]:
    """Returns values for a list; short ones if there are many."""
    few = [_value(field, chance, known) for _ in range(3)]
    if length > len(few) and isinstance(few[0], str | bytes):
        few = [value[:40] for value in few]
    return [few[index % 3] for index in range(length)]


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
            return texts_of(field)
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return FLOATS
        case FieldDescriptor.TYPE_ENUM:
            return (0, 999)
        case FieldDescriptor.TYPE_INT64:
            return LONGS
        case FieldDescriptor.TYPE_INT32:
            return INTEGERS
        case _:
            return ()


def spoiled_once(request: Any, chance: random.Random, known: Mapping[str, Sequence[str]]) -> None:
    """Replaces or adds one value of a request, at any depth."""
    places = list(_scalars(request))
    if not places or chance.random() < 0.3:
        _add_one(request, chance, known)
        return
    *parents, (field, index) = chance.choice(places)
    target = request
    for parent, place in parents:
        target = getattr(target, parent.name) if place is None else getattr(target, parent.name)[place]
    value = _value(field, chance, known)
    if index is None:
        setattr(target, field.name, value)
    elif chance.random() < 0.1:
        getattr(target, field.name).extend(_values(field, chance, known, chance.choice(LONG_LISTS)))
    else:
        getattr(target, field.name)[index] = value


def _add_one(request: Any, chance: random.Random, known: Mapping[str, Sequence[str]]) -> None:
    """Sets a field that the request or one of its messages may not have set."""
    target = request
    while True:
        field = chance.choice(target.DESCRIPTOR.fields or [None])
        if field is None:
            return
        if field.message_type is None:
            value = _value(field, chance, known)
            if _repeated(field):
                getattr(target, field.name).append(value)
            else:
                setattr(target, field.name, value)
            return
        if field.message_type.GetOptions().map_entry:
            _fill_map(getattr(target, field.name), field.message_type, chance)
            return
        inner = getattr(target, field.name)
        if _repeated(field):
            inner = chance.choice(inner) if len(inner) and chance.random() < 0.7 else inner.add()
        else:
            inner.SetInParent()
        target = inner


GARBAGE: Final = (b"\xff\xff\xff\xff", b"\x0a\xff\x01", b"\x0a\x05ab")
"""Bytes that are not a message of any type."""
NO_UTF8: Final = b"a\xff\xfe\x80"
SURROGATE: Final = b"a\xed\xa0\x80"
"""A lone surrogate as three bytes, which is not UTF-8."""
_DEPTH: Final = 3

Mutation = Callable[[bytes, random.Random], bytes]


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Returns a message with one to three mutations."""
    for _ in range(chance.randint(1, 3)):
        raw = chance.choice(_MUTATIONS)(raw, chance)
    return raw


def no_utf8(message: Descriptor, depth: int = _DEPTH) -> Iterator[bytes]:
    """Yields one message for each string field on every level, in which that string is not UTF-8."""
    for field in message.fields:
        key = varint(field.number << 3 | 2)
        if field.type == FieldDescriptor.TYPE_STRING:
            yield key + varint(len(NO_UTF8)) + NO_UTF8
        elif (kind := field.message_type) is not None and depth:
            for inner in no_utf8(kind, depth - 1):
                yield key + varint(len(inner)) + inner


def varint(value: int) -> bytes:
    """Returns a number as the wire format encodes it."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _changed_byte(raw: bytes, chance: random.Random) -> bytes:
    if not raw:
        return raw
    place = chance.randrange(len(raw))
    return raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]


def _truncated(raw: bytes, chance: random.Random) -> bytes:
    return raw[: chance.randrange(len(raw) + 1)]


def _twice(raw: bytes, _: random.Random) -> bytes:
    return raw + raw


def _with_piece(raw: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(raw) + 1)
    return raw[:place] + chance.choice(_PIECES) + raw[place:]


def _with_unknown_field(raw: bytes, chance: random.Random) -> bytes:
    number, content = chance.choice((17, 99, 1_000, 2**29 - 1)), chance.choice(_PIECES)
    return raw + varint(number << 3 | 2) + varint(len(content)) + content


def _with_foreign_type(raw: bytes, chance: random.Random) -> bytes:
    number = chance.randint(1, 20)
    return raw + chance.choice(
        (
            varint(number << 3) + varint(chance.choice((0, 1, 2**32, 2**64 - 1))),
            varint(number << 3 | 1) + chance.randbytes(8),
            varint(number << 3 | 5) + chance.randbytes(4),
            varint(number << 3 | 2) + varint(len(SURROGATE)) + SURROGATE,
            varint(number << 3 | 3) * chance.choice((1, 50, 5_000)),
        )
    )


def _nested(raw: bytes, chance: random.Random) -> bytes:
    """The message within itself, as often as parsers stop to follow."""
    for _ in range(chance.choice((1, 5, 200))):
        raw = b"\x12" + varint(len(raw)) + raw
        if len(raw) > 100_000:
            break
    return raw


_PIECES: Final = (*GARBAGE, NO_UTF8, SURROGATE, b"\0" * 20, b"\x80" * 11, b"\x0a\xff\xff\xff\xff\x0f")
_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _changed_byte,
    _changed_byte,
    _changed_byte,
    _truncated,
    _twice,
    _with_piece,
    _with_unknown_field,
    _with_foreign_type,
    _nested,
)
