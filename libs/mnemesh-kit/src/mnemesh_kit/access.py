"""The role that each RPC requires, and the bounds of its requests, as the contracts say.

The option `mnemesh.types.v1.access` of an RPC is the only source. A server refuses to clients what has no option.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from mnemesh_kit.call_context import Role, current_principal
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


@dataclass(frozen=True, slots=True)
class RpcRule:
    """The conditions that the kit checks before the request of an RPC is parsed."""

    role: Role
    """The role that a caller needs. A service may call what a client may call."""
    max_request_bytes: int
    bounds_stream: bool = True
    """Whether the requests of a stream are bounded together. False: the handler keeps none and has a bound of its own.
    """
    is_polled: bool = False
    """True if services poll this RPC. Its successful calls are logged at the level debug."""


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
    from mnemesh.types.v1 import access_pb2  # noqa: PLC0415  (servers only: a client checks nothing)

    service, _, name = method.removeprefix("/").partition("/")
    descriptor = service_descriptor(service)
    found = None if descriptor is None else descriptor.methods_by_name.get(name)
    if found is None or not found.GetOptions().HasExtension(access_pb2.access):
        return UNLISTED
    option = found.GetOptions().Extensions[access_pb2.access]
    return RpcRule(
        Role.SERVICE if option.role == access_pb2.CALLER_ROLE_SERVICE else Role.CLIENT,
        MAX_MESSAGE_BYTES if option.large_request else MAX_REQUEST_BYTES,
        bounds_stream=not option.unbounded_stream,
        is_polled=option.polled,
    )
