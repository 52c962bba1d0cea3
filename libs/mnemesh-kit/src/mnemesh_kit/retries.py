"""The retry policy of a channel: which methods it may retry, derived from the service's descriptor."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

_REPEATABLE: Final = (
    descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS,
    descriptor_pb2.MethodOptions.IDEMPOTENT,
)
_POLICY: Final = {
    "maxAttempts": 5,
    "initialBackoff": "0.05s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def service_descriptor(service: str) -> ServiceDescriptor | None:
    """Returns the descriptor of a service by its full name; None if its generated code is not imported."""
    try:
        return descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return None


@cache
def service_config(service: ServiceDescriptor | None) -> str:
    """Returns the gRPC service config of a service as JSON; without one, there are no retries."""
    return json.dumps(service_config_of([service] if service is not None else []))


def service_config_of(services: Iterable[ServiceDescriptor]) -> dict[str, object]:
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


def is_repeatable(method: MethodDescriptor) -> bool:
    """Returns whether a method may be called twice with the effect of once: it only reads, or has a `request_id`."""
    return method.GetOptions().idempotency_level in _REPEATABLE or request_id_number(method) is not None


def request_id_number(method: MethodDescriptor) -> int | None:
    """Returns the number of the `request_id` field of a method's request; None if it has none."""
    field = method.input_type.fields_by_name.get("request_id")
    return field.number if field is not None else None
