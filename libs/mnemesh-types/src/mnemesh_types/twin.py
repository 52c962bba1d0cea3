"""Twins: frozen dataclasses that convert themselves to one message of the contracts and back.

`class Block(Twin[blocks_pb2.Block])` has the fields of the message by `attribute_name`, so that nothing about a field
is written twice. A subclass may add fields that the message does not have; a twin may also have fewer. The two
functions of a class are compiled from the descriptor when they are first needed, into the code that one would write by
hand. The twins of the contracts are generated (`scripts/generate_types.py`).

| in the message | in the twin |
|---|---|
| `optional`, or a message that may be absent | None as default |
| a message that must be given | a default; the object of the default, and no equal one, is absent in the message |
| `repeated` | a tuple |
| a map | a dict |
| a timestamp, a duration | `datetime` in UTC, `timedelta` |
| an enum | a StrEnum, see `contract_enum` |
| a message with a twin | the twin |
| a oneof of messages | one field, named like the oneof, with the twin that is set |
| a message that has nothing but such a oneof | the twin that is set: see `OneOf` |
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, get_args, get_origin

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_from_proto, timestamp_to_proto

M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=Enum)
T = TypeVar("T")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The value of a time that must be given and is not."""
_NAMES: Final = {
    "create_time": "created_at",
    "update_time": "updated_at",
    "start_time": "started_at",
    "end_time": "ended_at",
    "close_time": "closed_at",
    "completion_time": "completed_at",
    "last_run_completion_time": "last_run_completed_at",
    "expire_time": "expires_at",
    "valid_from_time": "valid_from",
    "last_sleeptime": "last_sleeptime_at",
    "original_create_time": "original_created_at",
    "original_update_time": "original_updated_at",
    "time_to_first_token": "time_to_first_token",
}
"""The attributes of fields of time that are not the field's name with `at` for `time`."""

_TWINS: "Final[dict[str, type[Twin[Any]]]]" = {}
_ENUMS: Final[dict[str, tuple[dict[int, Any], dict[Any, int]]]] = {}
_ENUM_CLASSES: Final[dict[type[Enum], tuple[dict[int, Any], dict[Any, int]]]] = {}
_CONVERTERS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {}
_READERS: Final[dict[type, Callable[[Any], Any]]] = {}
_WRITERS: Final[dict[type, Callable[[Any], Any]]] = {}


def attribute_name(field: str) -> str:
    """Returns the name of the attribute for a field: `created_at` for `create_time`."""
    if field in _NAMES:
        return _NAMES[field]
    return f"{field.removesuffix('_time')}_at" if field.endswith("_time") else field


class Twin(Generic[M]):
    """The base of frozen dataclasses with the fields of the message `M`."""

    __slots__ = ()
    _message: ClassVar[type[Message]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Twin and isinstance(get_args(base)[0], type):
                cls._message = get_args(base)[0]
                _TWINS[cls._message.DESCRIPTOR.full_name] = cls

    @classmethod
    def from_proto(cls, message: M, field: str = "") -> Self:
        """Returns the twin of a message.

        Args:
            message: the message.
            field: its path in the request, for errors.

        Raises:
            InvalidArgument: an enum is unknown or not given, or a time is out of range. Metadata: field.
        """
        try:
            return (_READERS.get(cls) or _reader(cls))(message)  # type: ignore[no-any-return]
        except (KeyError, InvalidArgument):
            for error in _refusals(message, field):
                raise error from None
            raise

    def to_proto(self) -> M:
        """Returns the message."""
        return (_WRITERS.get(type(self)) or _writer(type(self)))(self)  # type: ignore[no-any-return]


class OneOf(Generic[M, T]):
    """The conversion of a message that has nothing but a oneof of messages: its twin is that of the field which is set.

    Example:
        >>> AUTHOR = OneOf[blocks_pb2.Author, AgentAuthor | OwnerAuthor](blocks_pb2.Author)
    """

    def __init__(self, message: type[M]) -> None:
        self._message = message
        _CONVERTERS[message.DESCRIPTOR.full_name] = (self._read, self.to_proto)

    def from_proto(self, message: M, field: str = "") -> T | None:
        """Returns the twin of the field that is set, or None. Raises InvalidArgument as `Twin.from_proto`."""
        try:
            return self._read(message)
        except (KeyError, InvalidArgument):
            for error in _refusals(message, field):
                raise error from None
            raise

    def to_proto(self, value: T | None) -> M:
        """Returns the message with the field that belongs to the twin."""
        return self._message(**fields_of(self._message, value))

    def _read(self, message: M) -> T | None:
        value: T | None = set_field(message, message.DESCRIPTOR.oneofs[0].name)
        return value


def contract_enum(wrapper: Any, unspecified: str | None = None) -> Callable[[type[E]], type[E]]:
    """Makes an enumeration the twin of an enum of the contracts: its members are those of the enum without the prefix.

    Args:
        wrapper: the enum of the generated module.
        unspecified: the member that UNSPECIFIED means. By default it has a member of its own, or is refused.
    """
    descriptor = wrapper.DESCRIPTOR

    def register(enum: type[E]) -> type[E]:
        prefix = descriptor.values[0].name.removesuffix("UNSPECIFIED")
        by_number: dict[int, Any] = {}
        for value in descriptor.values:
            name = value.name.removeprefix(prefix)
            if name == "UNSPECIFIED" and unspecified is not None:
                by_number[value.number] = enum[unspecified]
            elif name in enum.__members__:
                by_number[value.number] = enum[name]
        numbers = {member: number for number, member in sorted(by_number.items(), reverse=True)}
        numbers |= {member: number for number, member in by_number.items() if number}
        _ENUMS[descriptor.full_name] = _ENUM_CLASSES[enum] = (by_number, numbers)
        return enum

    return register


def register(message: type[M], read: Callable[[M], T], write: Callable[[T], M]) -> None:
    """Makes twins use a pair of functions for the messages of a type that has no twin."""
    _CONVERTERS[message.DESCRIPTOR.full_name] = (read, write)


def enum_from_proto(enum: type[E], number: int, field: str) -> E:
    """Returns the member for a number of the contract. Raises InvalidArgument if there is none. Metadata: field."""
    by_number = _ENUM_CLASSES[enum][0]
    if number not in by_number:
        raise _unknown(number, field)
    return by_number[number]  # type: ignore[no-any-return]


def number_of(member: Enum) -> Any:
    """Returns the number of a member in the contract."""
    return _ENUM_CLASSES[type(member)][1][member]


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def optional_to_proto(value: Twin[M] | None) -> M | None:
    """Returns the message of a twin; None, which leaves a field unset, for None."""
    return None if value is None else value.to_proto()


def set_field(message: Message, oneof: str) -> Any:
    """Returns the twin of the field of a oneof that is set, or None."""
    name = message.WhichOneof(oneof)
    if name is None:
        return None
    return _converters(message.DESCRIPTOR.fields_by_name[name].message_type)[0](getattr(message, name))


def fields_of(message: type[Message], value: object) -> dict[str, Any]:
    """Returns the argument for the field of a oneof that a twin belongs to: nothing for None."""
    if value is None:
        return {}
    kind = next(each for each in type(value).__mro__ if "__orig_bases__" in each.__dict__)
    full_name = kind._message.DESCRIPTOR.full_name  # type: ignore[attr-defined]
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.full_name == full_name:
            return {field.name: value.to_proto()}  # type: ignore[attr-defined]
    raise TypeError(f"{message.DESCRIPTOR.name} has no field for {full_name}")


def changes_of(twin: Twin[Any], mask: FieldMask, writable: Collection[str]) -> dict[str, Any]:
    """Returns the new values that the mask of an update names, by attribute; those of a nested twin are a dict.

    Raises:
        InvalidArgument: the mask is empty, or names a path that is not one of `writable`. Metadata: field.
    """
    changes: dict[str, Any] = {}
    for path in mask.paths:
        if path not in writable:
            raise InvalidArgument(f"update_mask must not name {path[:100]}.", field="update_mask")
        parent, _, name = (attribute_name(part) for part in path.rpartition("."))
        if parent:
            changes.setdefault(parent, {})[name] = getattr(getattr(twin, parent), name)
        else:
            changes[name] = getattr(twin, name)
    if not changes:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    return changes


def _time_from_proto(message: Timestamp) -> datetime:
    return timestamp_from_proto(message, "")


def _duration_from_proto(message: Duration) -> timedelta:
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1_000)


def _duration_to_proto(duration: timedelta) -> Duration:
    seconds, rest = divmod(duration, timedelta(seconds=1))
    return Duration(seconds=seconds, nanos=rest.microseconds * 1_000)


register(Timestamp, _time_from_proto, timestamp_to_proto)
register(Duration, _duration_from_proto, _duration_to_proto)


def whole_oneof(oneof: Any) -> bool:
    """Returns whether a oneof is one attribute of the twin: all its fields are messages of different types."""
    types = [] if oneof is None else [field.message_type for field in oneof.fields]
    return len(types) > 1 and None not in types and len({each.full_name for each in types}) == len(types)


def _converters(message: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if message.full_name in _CONVERTERS:
        return _CONVERTERS[message.full_name]
    twin = _TWINS[message.full_name]
    return _READERS.get(twin) or _reader(twin), _WRITERS.get(twin) or _writer(twin)


def _attributes(twin: type[Twin[Any]]) -> Iterator[tuple[Any, str, Any]]:
    """Yields the fields of the message that the twin has, their attributes, and their defaults.

    A oneof that is one attribute has its first field.
    """
    own = {field.name: field for field in fields(twin)}  # type: ignore[arg-type]
    seen: set[str] = set()
    described: Any = twin._message.DESCRIPTOR
    for field in described.fields:
        oneof = field.containing_oneof
        name = oneof.name if whole_oneof(oneof) else attribute_name(field.name)
        if name in own and name not in seen:
            seen.add(name)
            yield field, name, own[name].default


def _reader(twin: type[Twin[Any]]) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"twin": twin, "set_field": set_field}
    arguments = []
    for field, attribute, default in _attributes(twin):
        value, item = f"m.{field.name}", "{}"
        if whole_oneof(field.containing_oneof):
            arguments.append(f"{attribute}=set_field(m, {field.containing_oneof.name!r})")
            continue
        if _is_map(field):
            field = field.message_type.fields_by_name["value"]  # noqa: PLW2901
            if field.message_type is None:
                arguments.append(f"{attribute}=dict({value})")
            else:
                names[f"r_{attribute}"] = _converters(field.message_type)[0]
                arguments.append(f"{attribute}={{key: r_{attribute}(value) for key, value in {value}.items()}}")
            continue
        if field.enum_type is not None:
            names[f"r_{attribute}"], item = _ENUMS[field.enum_type.full_name][0], f"r_{attribute}[{{}}]"
        elif field.message_type is not None:
            names[f"r_{attribute}"], item = _converters(field.message_type)[0], f"r_{attribute}({{}})"
        if field.is_repeated:
            each = f"[{item.format('each')} for each in {value}]"
            arguments.append(f"{attribute}=tuple({value if item == '{}' else each})")
        elif default is None or field.message_type is not None:
            names[f"d_{attribute}"] = default
            arguments.append(f"{attribute}={item.format(value)} if m.HasField({field.name!r}) else d_{attribute}")
        else:
            arguments.append(f"{attribute}={item.format(value)}")
    _READERS[twin] = read = _compiled(twin, f"def convert(m): return twin({', '.join(arguments)})", names)
    return read


def _writer(twin: type[Twin[Any]]) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"message": twin._message, "fields_of": fields_of}
    arguments = []
    for field, attribute, default in _attributes(twin):
        value, item = f"t.{attribute}", "{}"
        if whole_oneof(field.containing_oneof):
            arguments.append(f"**fields_of(message, {value})")
            continue
        if _is_map(field):
            of_values = field.message_type.fields_by_name["value"].message_type
            if of_values is not None:
                names[f"w_{attribute}"] = _converters(of_values)[1]
                value = f"{{key: w_{attribute}(each) for key, each in {value}.items()}}"
            arguments.append(f"{field.name}={value}")
            continue
        if field.enum_type is not None:
            names[f"w_{attribute}"], item = _ENUMS[field.enum_type.full_name][1], f"w_{attribute}[{{}}]"
        elif field.message_type is not None:
            names[f"w_{attribute}"], item = _converters(field.message_type)[1], f"w_{attribute}({{}})"
        if item == "{}":
            arguments.append(f"{field.name}={value}")
        elif field.is_repeated:
            arguments.append(f"{field.name}=[{item.format('each')} for each in {value}]")
        elif default is None or field.message_type is not None:
            names[f"d_{attribute}"] = default
            arguments.append(f"{field.name}=None if {value} is d_{attribute} else {item.format(value)}")
        else:
            arguments.append(f"{field.name}={item.format(value)}")
    _WRITERS[twin] = write = _compiled(twin, f"def convert(t): return message({', '.join(arguments)})", names)
    return write


def _compiled(twin: type, source: str, names: dict[str, Any]) -> Callable[[Any], Any]:
    exec(compile(source, f"<{twin.__qualname__}>", "exec"), names)  # noqa: S102  # built from descriptors alone
    return names["convert"]  # type: ignore[no-any-return]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _refusals(message: Message, path: str) -> Iterator[InvalidArgument]:
    """Yields the errors of a message that cannot be converted, found one field after another."""
    if isinstance(message, Timestamp):
        try:
            timestamp_from_proto(message, path)
        except InvalidArgument as error:
            yield error
        return
    described: Any = message.DESCRIPTOR
    for field in described.fields:
        if _is_map(field):
            continue
        value = getattr(message, field.name)
        inner = f"{path}.{field.name}" if path else field.name
        each = enumerate(value) if field.is_repeated else [(None, value)]
        for index, item in each:
            place = inner if index is None or field.enum_type is not None else f"{inner}[{index}]"
            if field.enum_type is not None:
                known = _ENUMS.get(field.enum_type.full_name)
                absent = field.has_presence and not message.HasField(field.name)
                if known is not None and item not in known[0] and not absent:
                    yield _unknown(item, place)
            elif field.message_type is not None and (field.is_repeated or message.HasField(field.name)):
                yield from _refusals(item, place)


def _unknown(number: int, field: str) -> InvalidArgument:
    if number:
        return InvalidArgument(f"{field} has the unknown value {number}.", field=field)
    return InvalidArgument(f"{field} must be given.", field=field)
