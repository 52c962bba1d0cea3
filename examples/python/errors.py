"""The typed details of errors."""

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status


def describe(error: grpc.RpcError) -> str:
    """Returns the code of an error, its reason, and the field that is invalid."""
    words = [error.code().name]
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        if detail.Is(ErrorInfo.DESCRIPTOR):
            info = ErrorInfo.FromString(detail.value)
            words += [f"reason {info.reason}", *(f"{key}={value}" for key, value in sorted(info.metadata.items()))]
        elif detail.Is(BadRequest.DESCRIPTOR):
            violations = BadRequest.FromString(detail.value).field_violations
            words += [f"field {violation.field}: {violation.description}" for violation in violations]
    return ", ".join(words)
