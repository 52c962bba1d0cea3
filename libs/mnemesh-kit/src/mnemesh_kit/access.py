"""The role that each RPC requires, and the bounds of its requests, as the contracts say.

The option `mnemesh.types.v1.access` of an RPC is the only source. A server refuses to clients what has no option.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message

from mnemesh_kit.call_context import Principal, Role, current_principal
from mnemesh_kit.errors import PermissionDenied
from mnemesh_kit.ids import is_id
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


def admin_only(value: object, field: str) -> None:
    """Refuses a value of a request that needs the role of an admin, although its RPC does not.

    Raises:
        PermissionDenied: a caller with a lower role sets it. Metadata: field, required_role, role.
    """
    role = current_principal().role
    if value and not role.covers(Role.ADMIN):
        text = f"{field} requires the role {Role.ADMIN.value}. The caller has the role {role.value}."
        raise PermissionDenied(text, field=field, required_role=Role.ADMIN.value, role=role.value)


FindOwners = Callable[[str, Iterable[str]], Awaitable[Mapping[str, Set[str]]]]
"""Returns the agents to which things of an organization belong, by the ids of the things that exist."""


async def no_owners(_organization_id: str, ids: Iterable[str]) -> Mapping[str, Set[str]]:
    """Finds the agents of things in a service that has nothing of agents."""
    return {id_: frozenset() for id_ in ids}


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
    reads: bool = True
    """True if the RPC only reads."""
    agent_paths: tuple[tuple[str, ...], ...] = ()
    """The fields of the request that name agents, or what belongs to agents, as paths. Without any, callers that are
    limited to some agents may not call the RPC."""
    is_open_to_limited: bool = False
    """Whether limited callers may call the RPC although it names no agents."""
    used_paths: tuple[tuple[str, ...], ...] = ()
    """The fields that name, if they are set, what the call uses of agents."""

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
        if caller.agents is not None and not (self.agent_paths or self.is_open_to_limited):
            raise PermissionDenied(f"This method is not about one agent. {_LIMITED}", role=caller.role.value)

    async def require_agents(self, request: Message, caller: Principal, find_owners: FindOwners) -> None:
        """Checks that a request of a caller that is limited to some agents is about these.

        Each agent that it names must be one of them. What it names otherwise must belong to one of them if the RPC
        reads or uses it, and to no other agent if it changes it. What does not exist is left to the handler, except
        for what is only used. A list of the things of all agents becomes one of these agents.

        Raises:
            PermissionDenied: it names nothing, or something else. Metadata: field.
        """
        agents = caller.agents or frozenset()
        subjects = {path: named(request, path) for path in self.agent_paths}
        used = {path: [id_ for id_ in named(request, path) if id_] for path in self.used_paths}
        ids = {id_ for found in (subjects | used).values() for id_ in found}
        owners = await find_owners(caller.organization_id, {id_ for id_ in ids if not is_id(id_, "agent")})
        for path, found in (subjects | used).items():
            is_used = path in used
            for id_ in found:
                holders = {id_} if is_id(id_, "agent") else owners.get(id_, set() if is_used else None)
                may_share = self.reads or is_used
                if holders is None or (holders and (holders & agents if may_share else holders <= agents)):
                    continue
                field = ".".join(path)
                raise PermissionDenied(f"{field} must name what is of agents of the token. {_LIMITED}", field=field)
        if not any(subjects.values()) and not self.is_open_to_limited and not self._narrow(request, agents):
            field = " or ".join(".".join(path) for path in self.agent_paths)
            raise PermissionDenied(f"{field} must name what is of agents of the token. {_LIMITED}", field=field)

    def _narrow(self, request: Message, agents: Set[str]) -> bool:
        """Sets the filter of a list that names nothing, and so means everything, to these agents, if it has one."""
        parents = [path[:-1] for path in self.agent_paths if path[-1] == "agent_ids"]
        if not self.reads or not agents or not parents:
            return False
        filter_: Any = request
        for name in parents[0]:
            filter_ = getattr(filter_, name)
        filter_.agent_ids.extend(sorted(agents))
        return True


def named(message: Any, path: tuple[str, ...]) -> list[str]:
    """Returns the ids in a field. A message of a list that has none counts as one that names ""."""
    value = getattr(message, path[0])
    if len(path) == 1:
        return [value] * bool(value) if isinstance(value, str) else list(value)
    if isinstance(value, Message):
        return named(value, path[1:])
    return [id_ for each in value for id_ in named(each, path[1:]) or [""]]


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
    reads = found.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    return RpcRule(
        role,
        MAX_MESSAGE_BYTES if option.large_request else MAX_REQUEST_BYTES,
        bounds_stream=not option.unbounded_stream,
        is_polled=option.polled,
        is_audited=not reads and role is not Role.SERVICE and not option.unaudited,
        reads=reads,
        agent_paths=tuple(tuple(field.split(".")) for field in option.agent_fields),
        is_open_to_limited=option.open_to_limited,
        used_paths=tuple(tuple(field.split(".")) for field in option.used_fields),
    )
