"""Which methods a channel may repeat by itself, read from the service's descriptor."""

from __future__ import annotations

import json
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
    """The descriptor of a service by its full name, if its generated code was imported."""
    try:
        return descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return None


def service_config(service: ServiceDescriptor | None) -> str:
    """The gRPC service config of a service: round robin, and a retry of the methods that may be repeated."""
    config: dict[str, object] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if service is not None:
        names = [
            {"service": service.full_name, "method": method.name} for method in service.methods if is_repeatable(method)
        ]
        if names:
            config["methodConfig"] = [{"name": names, "retryPolicy": _POLICY}]
    return json.dumps(config)


def is_repeatable(method: MethodDescriptor) -> bool:
    """Whether asking twice is the same as asking once: it reads, or a request id makes it so."""
    return method.GetOptions().idempotency_level in _REPEATABLE or request_id_number(method) is not None


def request_id_number(method: MethodDescriptor) -> int | None:
    """The number of the request's `request_id` field, if it has one."""
    field = method.input_type.fields_by_name.get("request_id")
    return field.number if field is not None else None
