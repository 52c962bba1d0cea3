"""The role that each RPC requires, and the bounds of its requests, as the contracts say.

The option `mnemesh.types.v1.access` of an RPC is the only source. A server refuses to clients what has no option.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message

from mnemesh_kit.call_context import Principal, Role, current_principal
from mnemesh_kit.errors import PermissionDenied
from mnemesh_kit.retries import service_descriptor
from mnemesh_kit.services import GRPC_SERVICES, import_contracts
from mnemesh_kit.transport import MAX_MESSAGE_BYTES

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""The largest request, except for RPCs that carry images, imports, batches, or the blocks of an agent."""


def service_only(value: bool, field: str) -> bool:
    """Returns a flag that only services of the mesh may set.

    Raises:
        PermissionDenied: a client sets it. Metadata: field, required_role.
    """
    if value and current_principal().role is not Role.SERVICE:
        raise PermissionDenied(f"Only services of the mesh set {field}.", field=field, required_role=Role.SERVICE.value)
    return value


_LIMITED: Final = "The token of the caller is limited to some agents."


def refuse_limited(value: object, field: str) -> None:
    """Refuses a value that gives an agent a part of the memory of others, if the caller is limited to some agents.

    Raises:
        PermissionDenied: such a caller sets it. Metadata: field.
    """
    if value and current_principal().agents is not None:
        raise PermissionDenied(f"{field} reaches the memory of other agents. {_LIMITED}", field=field)


@dataclass(frozen=True, slots=True)
class RpcRule:
    """The conditions that the kit checks before the request of an RPC is parsed."""

    role: Role
    """The role that a caller needs at least."""
    max_request_bytes: int
    bounds_stream: bool = True
    """Whether the requests of a stream are bounded together. False: the handler keeps none and has a bound of its own.
    """
    is_polled: bool = False
    """True if services poll this RPC. Its successful calls are logged at the level debug."""
    is_audited: bool = False
    """True if calls of clients have entries in the audit log."""
    agent_path: tuple[str, ...] = ()
    """The field of the request that names agents, as a path."""
    answer_path: tuple[str, ...] = ()
    """The field of the response of a read that names its agent. Without this path or the one above, callers that are
    limited to some agents may not call the RPC."""

    @property
    def is_for_clients(self) -> bool:
        """Returns whether callers other than services may call the RPC."""
        return self.role is not Role.SERVICE

    def require(self, caller: Principal) -> None:
        """Checks that a caller may call the RPC, whatever the request is.

        Raises:
            PermissionDenied: its role is too low, or it is limited to some agents and the RPC is not about any.
        """
        if not caller.role.covers(self.role):
            if not self.is_for_clients:
                raise PermissionDenied(
                    "Only services of the mesh may call this method. Use the methods of the orchestrator.",
                    required_role=self.role.value,
                    role=caller.role.value,
                )
            raise PermissionDenied(
                f"This method requires the role {self.role.value}. The caller has the role {caller.role.value}.",
                required_role=self.role.value,
                role=caller.role.value,
            )
        if caller.agents is not None and not self.agent_path and not self.answer_path:
            raise PermissionDenied(f"This method is not about one agent. {_LIMITED}", role=caller.role.value)

    def require_agents(self, request: Message, agents: frozenset[str]) -> None:
        """Checks that a request is about agents to which its caller is limited.

        Raises:
            PermissionDenied: it names no agent, or another one. Metadata: field.
        """
        if self.agent_path and not _are_named(request, self.agent_path, agents):
            field = ".".join(self.agent_path)
            raise PermissionDenied(f"{field} must name agents of the token. {_LIMITED}", field=field)

    def require_agent_of_answer(self, response: Message, agents: frozenset[str]) -> None:
        """Checks that what a read found is of an agent to which its caller is limited.

        Raises:
            PermissionDenied: it is of another one, or of none.
        """
        if self.answer_path and not _are_named(response, self.answer_path, agents):
            raise PermissionDenied(f"What the request names is not of an agent of the token. {_LIMITED}")


def _are_named(message: Message, path: tuple[str, ...], agents: frozenset[str]) -> bool:
    """Returns whether a field names agents, and only some of these."""
    value: Any = message
    for name in path:
        value = getattr(value, name)
    named = {value} if isinstance(value, str) else set(value)
    return bool(named) and named <= agents


UNLISTED: Final = RpcRule(Role.SERVICE, MAX_REQUEST_BYTES)
"""The rule of an RPC that is not in the contracts, or has no option."""
_rules: dict[str, RpcRule] = {}


def rule_of(method: str) -> RpcRule:
    """Returns the rule of an RPC by its path, `/package.Service/Method`; `UNLISTED` without one.

    The generated code of the service must be imported, as it is in every process that serves or calls it.
    """
    known = _rules.get(method)
    if known is None:
        known = _read_rule(method)
        if known is not UNLISTED:  # strangers choose the names of methods that do not exist
            _rules[method] = known
    return known


def rules_of(services: Iterable[str] = GRPC_SERVICES) -> Mapping[str, RpcRule]:
    """Returns the rules of all RPCs of gRPC services by their paths, without those that need no token."""
    names = tuple(services)
    import_contracts(names)
    paths = (f"/{name}/{method.name}" for name in names for method in service_descriptor(name).methods)  # type: ignore[union-attr]
    rules = {path: rule_of(path) for path in paths}
    return {path: rule for path, rule in rules.items() if rule is not UNLISTED}


@cache
def largest_request(services: tuple[str, ...]) -> int:
    """Returns the size of the largest request that these gRPC services accept."""
    return max((rule.max_request_bytes for rule in rules_of(services).values()), default=MAX_REQUEST_BYTES)


def _read_rule(method: str) -> RpcRule:
    from google.protobuf.descriptor_pb2 import MethodOptions  # noqa: PLC0415  (servers only: a client checks nothing)
    from mnemesh.types.v1 import access_pb2  # noqa: PLC0415

    service, _, name = method.removeprefix("/").partition("/")
    descriptor = service_descriptor(service)
    found = None if descriptor is None else descriptor.methods_by_name.get(name)
    if found is None or not found.GetOptions().HasExtension(access_pb2.access):
        return UNLISTED
    option = found.GetOptions().Extensions[access_pb2.access]
    role = Role[access_pb2.CallerRole.Name(option.role).removeprefix("CALLER_ROLE_")]
    changes = found.GetOptions().idempotency_level != MethodOptions.NO_SIDE_EFFECTS
    return RpcRule(
        role,
        MAX_MESSAGE_BYTES if option.large_request else MAX_REQUEST_BYTES,
        bounds_stream=not option.unbounded_stream,
        is_polled=option.polled,
        is_audited=changes and role is not Role.SERVICE and not option.unaudited,
        agent_path=tuple(option.agent_field.split(".")) if option.agent_field else (),
        answer_path=_answer_path(found, option.response_agent_field),
    )


def _answer_path(method: MethodDescriptor, field: str) -> tuple[str, ...]:
    """Returns a path in the response; none if the answer is known too late: after a change, or in parts."""
    reads = method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    return tuple(field.split(".")) if field and reads and not method.server_streaming else ()
