"""Retries: the delays of a back-off, and the retry policy of a channel, derived from the service's descriptor."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that grow by a factor up to a maximum, with jitter.

    Example:
        >>> backoff = Backoff(first=0.1, maximum=15.0, jitter=0.0)
        >>> [backoff.delay(attempt) for attempt in (1, 2, 3, 20)]
        [0.1, 0.2, 0.4, 15.0]
    """

    first: float
    """The delay after the first failure, in seconds, before jitter."""
    maximum: float
    """No delay is longer than this many seconds."""
    factor: float = 2.0
    """The growth from one delay to the next."""
    jitter: float = 0.25
    """The share of each delay that is random: 0 is none; 1 draws from zero up to the whole delay."""

    def delay(self, attempt: int) -> float:
        """Returns the seconds to wait after the failed attempt with this number, counted from 1.

        With jitter, the delay is drawn uniformly from `[(1 - jitter) * delay, delay]`.
        """
        try:
            grown = min(self.maximum, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            grown = self.maximum
        return grown * (1.0 - self.jitter * random.random())  # noqa: S311  (jitter)

    def delays(self) -> Iterator[float]:
        """Yields the delays after the first, second and every later failed attempt, without end."""
        return (self.delay(attempt) for attempt in count(1))


ATTEMPTS: Final = 5
"""How often a repeatable call is tried while its server is unavailable."""
RETRIES: Final = Backoff(first=0.05, maximum=1.0)
"""The delays between these attempts."""
_POLICY: Final = {
    "maxAttempts": ATTEMPTS,
    "initialBackoff": f"{RETRIES.first}s",
    "maxBackoff": f"{RETRIES.maximum:.0f}s",
    "backoffMultiplier": RETRIES.factor,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def service_descriptor(service: str) -> "ServiceDescriptor | None":
    """Returns the descriptor of a service by its full name; None if its generated code is not imported."""
    from google.protobuf import descriptor_pool  # noqa: PLC0415  (a process that calls nothing has only the delays)

    try:
        return descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return None


@cache
def service_config(service: "ServiceDescriptor | None") -> str:
    """Returns the gRPC service config of a service as JSON; without one, there are no retries."""
    return json.dumps(service_config_of([service] if service is not None else []))


def service_config_of(services: "Iterable[ServiceDescriptor]") -> dict[str, object]:
    """Returns the gRPC service config of services: round robin, and retries of the repeatable methods."""
    config: dict[str, object] = {"loadBalancingConfig": [{"round_robin": {}}]}
    names = [
        {"service": service.full_name, "method": method.name}
        for service in services
        for method in service.methods
        if is_repeatable(method)
    ]
    if names:
        config["methodConfig"] = [{"name": names, "retryPolicy": _POLICY}]
    return config


def is_repeatable(method: "MethodDescriptor") -> bool:
    """Returns whether a method may be called twice with the effect of once: it only reads, or has a `request_id`."""
    from google.protobuf.descriptor_pb2 import MethodOptions  # noqa: PLC0415

    levels = (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)
    return method.GetOptions().idempotency_level in levels or request_id_number(method) is not None


def request_id_number(method: "MethodDescriptor") -> int | None:
    """Returns the number of the `request_id` field of a method's request; None if it has none."""
    field = method.input_type.fields_by_name.get("request_id")
    return field.number if field is not None else None
