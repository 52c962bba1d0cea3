"""Twins: frozen dataclasses that convert themselves to one message of the contracts and back.

`class Block(Twin[blocks_pb2.Block])` has the fields of the message by `attribute_name`, so that nothing about a field
is written twice. A subclass may add fields that the message does not have; a twin may also have fewer. The two
functions of a class are compiled from the descriptor when they are first needed, into the code that one would write by
hand. The twins of the contracts are generated (`scripts/generate_types.py`).

A service's own type, a dataclass or a Struct of msgspec, is converted in the same way by a `Conversion`. What a
package registers is used for the types of this package only; without it, that of `mnemesh_types` is used.

| in the message | in the twin |
|---|---|
| `optional`, or a message that may be absent | None as default |
| a value without presence, if "", 0 or no item means another one | this one as default, such as None |
| a message that must be given | a default; the object of the default, and no equal one, is absent in the message |
| `repeated` | a tuple |
| a map | a dict |
| a timestamp | `datetime` in UTC |
| a duration | `timedelta`; a number if the attribute ends with its unit, `ms` or `seconds` |
| an enum | a StrEnum, see `contract_enum` |
| a message with a twin | the twin |
| a oneof of messages | one field, named like the oneof, with the twin that is set |
| a message that has nothing but such a oneof | the twin that is set: see `OneOf` |
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar, get_args, get_origin

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_from_proto, timestamp_to_proto
from msgspec import NODEFAULT, Struct, structs

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
    "valid_since_time": "valid_since",
    "valid_at_time": "valid_at",
    "known_at_time": "known_at",
    "last_sleeptime": "last_sleeptime_at",
    "original_create_time": "original_created_at",
    "original_update_time": "original_updated_at",
    "time_to_first_token": "time_to_first_token",
}
"""The attributes of fields of time that are not the field's name with `at` for `time`."""

_OWN: Final = "mnemesh_types"
_TWINS: "Final[dict[tuple[str, str], _Shape]]" = {}
"""By package and message."""
_CONVERTERS: Final[dict[tuple[str, str], tuple[Callable[[Any, str], Any], Callable[[Any], Any]]]] = {}
"""By package and message: the functions of `register`."""
_ENUMS: Final[dict[tuple[str, str], tuple[dict[int, Any], dict[Any, int]]]] = {}
"""By package and enum: the members by number, and the numbers by member."""
_ENUM_CLASSES: Final[dict[type[Enum], tuple[dict[int, Any], dict[Any, int]]]] = {}
_SHAPES: "Final[dict[type, _Shape]]" = {}
"""Of twins, by class."""


@dataclass(slots=True)
class _Shape:
    """A class with the fields of a message, and the two functions, which are compiled when they are first needed."""

    message: type[Message]
    kind: type
    names: Mapping[str, str | None]
    """The attributes whose names are not those of `attribute_name`, by field; None for a field without one."""
    read: Callable[..., Any] | None = None
    write: Callable[..., Any] | None = None

    @property
    def package(self) -> str:
        """The package of the class, whose registrations its conversion uses."""
        return _package(self.kind)


def _package(kind: Any) -> str:
    return str(kind.__module__).partition(".")[0]


def _registered(table: Mapping[tuple[str, str], T], package: str, full_name: str) -> T | None:
    return table.get((package, full_name)) or table.get((_OWN, full_name))


def attribute_name(field: str) -> str:
    """Returns the name of the attribute for a field: `created_at` for `create_time`."""
    if field in _NAMES:
        return _NAMES[field]
    return f"{field.removesuffix('_time')}_at" if field.endswith("_time") else field


class Twin(Generic[M]):
    """The base of frozen dataclasses with the fields of the message `M`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Twin and isinstance(get_args(base)[0], type):
                message = get_args(base)[0]
                _SHAPES[cls] = _TWINS[_package(cls), message.DESCRIPTOR.full_name] = _Shape(message, cls, {})

    @classmethod
    def from_proto(cls, message: M, field: str = "") -> Self:
        """Returns the twin of a message.

        Args:
            message: the message.
            field: its path in the request, for errors.

        Raises:
            InvalidArgument: an enum is unknown or not given, or a time is out of range. Metadata: field.
        """
        shape = _SHAPES.get(cls) or _shape_of(cls)
        try:
            return (shape.read or _reader(shape))(message)  # type: ignore[no-any-return]
        except (KeyError, InvalidArgument) as error:
            raise _refusal(message, field, error, shape.package) from None

    def to_proto(self) -> M:
        """Returns the message."""
        shape = _SHAPES.get(type(self)) or _shape_of(type(self))
        return (shape.write or _writer(shape))(self)  # type: ignore[no-any-return]


class Conversion(Generic[M, T]):
    """The conversion of a type that is not a twin, and that has fields of a message.

    Example:
        >>> STEP = Conversion(runs_pb2.Step, Step, context_window_limit="context_window")
        >>> STEP.from_proto(STEP.to_proto(step)) == step
        True
    """

    def __init__(self, message: type[M], kind: type[T], **names: str | None) -> None:
        """Makes the type that of the messages wherever types of its package contain them.

        Args:
            message: The type of the messages.
            kind: The type. Its properties are written only. A default that is not None is written, too.
            names: The attributes, by field, that do not have the name of `attribute_name`; None for a field that is
                not converted.
        """
        described = message.DESCRIPTOR
        if unknown := names.keys() - {*described.fields_by_name, *described.oneofs_by_name}:
            raise TypeError(f"{message.DESCRIPTOR.name} has no field {min(unknown)}")
        self._shape = _TWINS[_package(kind), described.full_name] = _Shape(message, kind, names)

    def from_proto(self, message: M, field: str = "", **values: Any) -> T:
        """Returns the object of a message, with values of attributes that the message does not have.

        Raises InvalidArgument as `Twin.from_proto`.
        """
        try:
            return (self._shape.read or _reader(self._shape))(message, **values)  # type: ignore[no-any-return]
        except (KeyError, InvalidArgument) as error:
            raise _refusal(message, field, error, self._shape.package) from None

    def to_proto(self, value: T, **values: Any) -> M:
        """Returns the message of an object, with values of fields that the object does not have."""
        return (self._shape.write or _writer(self._shape))(value, **values)  # type: ignore[no-any-return]

    def changes(self, message: M, mask: FieldMask, writable: Collection[str], field: str) -> dict[str, Any]:
        """Returns the new values that the mask of an update names, by attribute; those of a nested twin are a dict.

        Only these fields are read. The caller reads those that the type does not have.

        Raises:
            InvalidArgument: the mask is empty, or names a path that is not one of `writable`; or a value is refused as
                by `Twin.from_proto`. Metadata: field.
        """
        changes: dict[str, Any] = {}
        for path in _writable_paths(mask, writable):
            parent, _, name = path.rpartition(".")
            inner: Any = getattr(message, parent) if parent else message
            shape = self._shape
            if parent:
                shape = _registered(_TWINS, shape.package, inner.DESCRIPTOR.full_name) or shape
            try:
                found = _attribute_of(shape, inner, name)
            except (KeyError, InvalidArgument) as error:
                raise _refusal(message, field, error, shape.package) from None
            (changes.setdefault(attribute_name(parent), {}) if parent else changes).update(found)
        return changes


class OneOf(Generic[M, T]):
    """The conversion of a message that has nothing but a oneof of messages: its twin is that of the field which is set.

    Example:
        >>> AUTHOR = OneOf[blocks_pb2.Author, AgentAuthor | OwnerAuthor](blocks_pb2.Author)
    """

    def __init__(self, message: type[M], required: str | None = None, package: str = _OWN) -> None:
        """Makes it that of the messages wherever twins contain them.

        Args:
            message: The type of the messages.
            required: What the error says after the path of a message without a field; None allows such messages.
            package: The package of the twins.
        """
        self._message, self._required, self._package = message, required, package
        _CONVERTERS[package, message.DESCRIPTOR.full_name] = (self._read, self.to_proto)

    def from_proto(self, message: M, field: str = "") -> T | None:
        """Returns the twin of the field that is set, or None. Raises InvalidArgument as `Twin.from_proto`."""
        try:
            return self._read(message, field)
        except (KeyError, InvalidArgument) as error:
            raise _refusal(message, field, error, self._package) from None

    def to_proto(self, value: T | None) -> M:
        """Returns the message with the field that belongs to the twin."""
        return self._message(**fields_of(self._message, value))

    def _read(self, message: M, field: str) -> T | None:
        value: T | None = set_field(message, message.DESCRIPTOR.oneofs[0].name, self._package)
        if value is None and self._required is not None:
            raise InvalidArgument(f"{field} {self._required}.", field=field)
        return value


def contract_enum(wrapper: Any, unspecified: str | None = None, **names: str) -> Callable[[type[E]], type[E]]:
    """Makes an enumeration the twin of an enum of the contracts.

    A value belongs to the member with its name without the prefix, or with that of `attribute_name`: `CREATED_AT` for
    `CREATE_TIME`.

    Args:
        wrapper: the enum of the generated module.
        unspecified: the member that UNSPECIFIED means. By default it has a member of its own, or is refused.
        names: the values of members that have other names, by member.
    """
    descriptor = wrapper.DESCRIPTOR

    def register(enum: type[E]) -> type[E]:
        prefix = descriptor.values[0].name.removesuffix("UNSPECIFIED")
        by_name = {value.name.removeprefix(prefix): value.number for value in descriptor.values}
        by_number: dict[int, Any] = {}
        for name, number in by_name.items():
            known = (name, attribute_name(name.lower()).upper())
            member = unspecified if name == "UNSPECIFIED" and unspecified is not None else None
            member = member or next((each for each in known if each in enum.__members__), None)
            if member is not None:
                by_number[number] = enum[member]
        for member, name in names.items():
            by_number.setdefault(by_name[name], enum[member])
        numbers = {member: number for number, member in sorted(by_number.items(), reverse=True)}
        numbers |= {member: number for number, member in by_number.items() if number}
        numbers |= {enum[member]: by_name[name] for member, name in names.items()}
        _ENUMS[_package(enum), descriptor.full_name] = _ENUM_CLASSES[enum] = (by_number, numbers)
        return enum

    return register


def enum_of(wrapper: Any, enum: type[E], unspecified: str | None = None, **names: str) -> None:
    """Makes a service's own enumeration the twin of an enum of the contracts; see `contract_enum`."""
    contract_enum(wrapper, unspecified, **names)(enum)


def register(message: type[M], read: Callable[[M, str], T | None], write: Callable[[T], M]) -> None:
    """Makes the twins of a package use a pair of functions of it for the messages of a type that has no twin.

    Args:
        message: The type.
        read: Returns the value of a message. Its second argument is the path of the message, for errors.
        write: Returns the message of a value.
    """
    _CONVERTERS[_package(read), message.DESCRIPTOR.full_name] = (read, write)


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


def written(message: M, paths: Collection[str]) -> M:
    """Returns a copy of a message with only the fields that callers write.

    Args:
        message: The message.
        paths: The names of the fields; for some of the fields of a message, paths such as `provenance.project_id`.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    for field, value in copy.ListFields():
        inner = {path.removeprefix(f"{field.name}.") for path in paths if path.startswith(f"{field.name}.")}
        if inner:
            value.CopyFrom(written(value, inner))
        elif field.name not in paths:
            copy.ClearField(field.name)
    return copy


def optional_to_proto(value: Twin[M] | None) -> M | None:
    """Returns the message of a twin; None, which leaves a field unset, for None."""
    return None if value is None else value.to_proto()


def set_field(message: Message, oneof: str, package: str = _OWN) -> Any:
    """Returns the twin of the field of a oneof that is set, or None."""
    name = message.WhichOneof(oneof)
    if name is None:
        return None
    return _converters(message.DESCRIPTOR.fields_by_name[name].message_type, package)[0](getattr(message, name))


def fields_of(message: type[Message], value: object) -> dict[str, Any]:
    """Returns the argument for the field of a oneof that a twin belongs to: nothing for None."""
    if value is None:
        return {}
    described: Any = message.DESCRIPTOR
    for field in described.fields:
        for package in (_package(type(value)), _OWN) if field.message_type is not None else ():
            shape = _TWINS.get((package, field.message_type.full_name))
            if shape is not None and isinstance(value, shape.kind):
                return {field.name: (shape.write or _writer(shape))(value)}
    raise TypeError(f"{message.DESCRIPTOR.name} has no field for {type(value).__name__}")


def _writable_paths(mask: FieldMask, writable: Collection[str]) -> Collection[str]:
    for path in mask.paths:
        if path not in writable:
            raise InvalidArgument(f"update_mask must not name {path[:100]}.", field="update_mask")
    if not mask.paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    return mask.paths


def _duration_from_proto(message: Duration, _field: str) -> timedelta:
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1_000)


def _duration_to_proto(duration: timedelta) -> Duration:
    seconds, rest = divmod(duration, timedelta(seconds=1))
    return Duration(seconds=seconds, nanos=rest.microseconds * 1_000)


_MILLISECONDS: Final = (
    lambda duration: duration.seconds * 1_000 + duration.nanos // 1_000_000,
    lambda number: Duration(seconds=number // 1_000, nanos=number % 1_000 * 1_000_000),
)
_SECONDS: Final = (
    lambda duration: duration.seconds + duration.nanos / 1e9,
    lambda number: _duration_to_proto(timedelta(seconds=number)),
)
_CONVERTERS[_OWN, Timestamp.DESCRIPTOR.full_name] = timestamp_from_proto, timestamp_to_proto
register(Duration, _duration_from_proto, _duration_to_proto)


def whole_oneof(oneof: Any) -> bool:
    """Returns whether a oneof is one attribute of the twin: all its fields are messages of different types."""
    types = [] if oneof is None else [field.message_type for field in oneof.fields]
    return len(types) > 1 and None not in types and len({each.full_name for each in types}) == len(types)


def message_of(twin: type) -> type[Message]:
    return _shape_of(twin).message


def _shape_of(twin: type) -> _Shape:
    """Returns the shape of a twin, which a subclass has from the class that it extends."""
    if twin not in _SHAPES:
        base = next(_SHAPES[each] for each in twin.__mro__ if each in _SHAPES)
        _SHAPES[twin] = _Shape(base.message, twin, base.names)
    return _SHAPES[twin]


def _converters(message: Any, package: str, attribute: str = "") -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if message.full_name == Duration.DESCRIPTOR.full_name and attribute.endswith(("ms", "seconds")):
        return _MILLISECONDS if attribute.endswith("ms") else _SECONDS
    if (pair := _registered(_CONVERTERS, package, message.full_name)) is not None:
        return partial(_read_without_path, pair[0]), pair[1]
    shape = _registered(_TWINS, package, message.full_name)
    if shape is None:
        raise TypeError(f"{message.full_name} has no twin")
    return shape.read or _reader(shape), shape.write or _writer(shape)


def _read_without_path(read: Callable[[Any, str], Any], message: Any) -> Any:
    return read(message, "")


def _enum(package: str, enum: Any) -> tuple[dict[int, Any], dict[Any, int]]:
    found = _registered(_ENUMS, package, enum.full_name)
    if found is None:
        raise TypeError(f"{enum.full_name} has no twin")
    return found


def _attributes(shape: _Shape, *, writes: bool = False) -> Iterator[tuple[Any, str, Any]]:
    """Yields the fields of the message that the twin has, their attributes, and their defaults.

    A oneof that is one attribute has its first field. Properties, whose default is None, are written only.
    """
    twin, names = shape.kind, shape.names
    defaults = _defaults(twin)
    if writes:
        defaults |= {name: None for name in dir(twin) if isinstance(getattr(twin, name), property)}
    seen: set[str | None] = set()
    described: Any = shape.message.DESCRIPTOR
    for field in described.fields:
        oneof = field.containing_oneof
        key = oneof.name if whole_oneof(oneof) else field.name
        name = names.get(key, attribute_name(key))
        if name in defaults and name not in seen:
            seen.add(name)
            yield field, name, defaults[name]


def _defaults(twin: Any) -> dict[str, Any]:
    """Returns the defaults of the attributes; `MISSING` for one that has none, or makes one for each object.

    An attribute without a default that may be None has None.
    """
    of: Any = structs.fields(twin) if issubclass(twin, Struct) else fields(twin)
    missing = (MISSING, NODEFAULT)
    return {
        field.name: (None if "None" in str(field.type) else MISSING) if field.default in missing else field.default
        for field in of
    }


def _reader(shape: _Shape) -> Callable[..., Any]:
    names: dict[str, Any] = {"twin": shape.kind, "set_field": set_field}
    arguments = [
        f"{name}={_reading(shape, field, name, default, names)}" for field, name, default in _attributes(shape)
    ]
    source = f"def convert(m, **v): return twin({', '.join((*arguments, '**v'))})"
    shape.read = read = _compiled(shape, source, names)
    return read


def _attribute_of(shape: _Shape, message: Any, path: str) -> dict[str, Any]:
    """Returns the value of a field of a message by its attribute; nothing if the twin does not have the field."""
    for field, attribute, default in _attributes(shape):
        if path in (field.name, field.containing_oneof and field.containing_oneof.name):
            names: dict[str, Any] = {"set_field": set_field}
            read = _compiled(
                shape, f"def convert(m): return {_reading(shape, field, attribute, default, names)}", names
            )
            return {attribute: read(message)}
    return {}


def _reading(shape: _Shape, field: Any, attribute: str, default: Any, names: dict[str, Any]) -> str:
    """Returns the expression for the value of an attribute in the message `m`, and adds the names that it uses."""
    package, value, item = shape.package, f"m.{field.name}", "{}"
    if whole_oneof(field.containing_oneof):
        return f"set_field(m, {field.containing_oneof.name!r}, {package!r})"
    if _is_map(field):
        of_values = field.message_type.fields_by_name["value"].message_type
        if of_values is None:
            return f"dict({value})"
        names[f"r_{attribute}"] = _converters(of_values, package)[0]
        return f"{{key: r_{attribute}(value) for key, value in {value}.items()}}"
    if field.enum_type is not None:
        names[f"r_{attribute}"], item = _enum(package, field.enum_type)[0], f"r_{attribute}[{{}}]"
    elif field.message_type is not None:
        names[f"r_{attribute}"], item = _converters(field.message_type, package, attribute)[0], f"r_{attribute}({{}})"
    if field.is_repeated:
        each = f"[{item.format('each')} for each in {value}]"
        return f"tuple({value if item == '{}' else each})" + (" or None" if default is None else "")
    if default is None and not field.has_presence:
        return f"{item.format(value)} if {value} else None"
    if default and isinstance(default, str | int) and default is not True and item == "{}" and not field.has_presence:
        return f"{value} or {default!r}"
    if field.has_presence and default is not MISSING:
        names[f"d_{attribute}"] = default
        return f"{item.format(value)} if m.HasField({field.name!r}) else d_{attribute}"
    return item.format(value)


def _writer(shape: _Shape) -> Callable[..., Any]:
    names: dict[str, Any] = {"message": shape.message, "fields_of": fields_of}
    is_twin, package = issubclass(shape.kind, Twin), shape.package
    arguments = []
    for field, attribute, default in _attributes(shape, writes=True):
        value, item = f"t.{attribute}", "{}"
        if whole_oneof(field.containing_oneof):
            arguments.append(f"**fields_of(message, {value})")
            continue
        if _is_map(field):
            of_values = field.message_type.fields_by_name["value"].message_type
            if of_values is not None:
                names[f"w_{attribute}"] = _converters(of_values, package)[1]
                value = f"{{key: w_{attribute}(each) for key, each in {value}.items()}}"
            arguments.append(f"{field.name}={value}")
            continue
        if field.enum_type is not None:
            names[f"w_{attribute}"], item = _enum(package, field.enum_type)[1], f"w_{attribute}[{{}}]"
        elif field.message_type is not None:
            names[f"w_{attribute}"], item = (
                _converters(field.message_type, package, attribute)[1],
                f"w_{attribute}({{}})",
            )
        if item == "{}":
            arguments.append(f"{field.name}={value}")
        elif field.is_repeated:
            arguments.append(f"{field.name}=[{item.format('each')} for each in {value}]")
        elif default is None or field.message_type is not None:
            names[f"d_{attribute}"] = default if is_twin and default is not MISSING else None
            arguments.append(f"{field.name}=None if {value} is d_{attribute} else {item.format(value)}")
        else:
            arguments.append(f"{field.name}={item.format(value)}")
    source = f"def convert(t, **v): return message({', '.join((*arguments, '**v'))})"
    shape.write = write = _compiled(shape, source, names)
    return write


def _compiled(shape: _Shape, source: str, names: dict[str, Any]) -> Callable[..., Any]:
    exec(compile(source, f"<{shape.kind.__qualname__}>", "exec"), names)  # noqa: S102  # built from descriptors alone
    return names["convert"]  # type: ignore[no-any-return]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _refusal(message: Message, path: str, error: Exception, package: str) -> Exception:
    """Returns the error of a conversion that failed, with the path of the field."""
    return next(_refusals(message, path, package), error)


def _refusals(message: Message, path: str, package: str) -> Iterator[InvalidArgument]:
    """Yields the errors of a message that cannot be converted, found one field after another."""
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
                known = _registered(_ENUMS, package, field.enum_type.full_name)
                absent = field.has_presence and not message.HasField(field.name)
                if known is not None and item not in known[0] and not absent:
                    yield _unknown(item, place)
            elif field.message_type is not None and (field.is_repeated or message.HasField(field.name)):
                pair = _registered(_CONVERTERS, package, field.message_type.full_name)
                with suppress(KeyError):
                    try:
                        _ = pair and pair[0](item, place)
                    except InvalidArgument as error:
                        if error.field:
                            yield error
                yield from _refusals(item, place, package)


def _unknown(number: int, field: str) -> InvalidArgument:
    if number:
        return InvalidArgument(f"{field} has the unknown value {number}.", field=field)
    return InvalidArgument(f"{field} must be given.", field=field)
