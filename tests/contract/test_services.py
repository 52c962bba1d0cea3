"""Common behaviour of every service: reflection, health, paging, and errors with a reason."""

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from mnemesh.server.v1 import server_service_pb2, server_service_pb2_grpc
from mnemesh_testkit.fuzzing.contract import call, field_of, new_request, reads, reason_of, service_of
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

NOT_REPEATED = (
    *("ExecuteTool", "RunCode", "RunCodeWithTools", "StartMcpAuthorization", "CompleteMcpAuthorization"),
    "ReceiveMcpAuthorization",
    *("ClaimCallbacks", "RecordCallback"),
)
"""RPCs without a request_id. The ledger cannot make the effects of programs idempotent. An authorization code is valid
once. A callback is due again if its claim is lost, and its result is stored by the number of the attempt."""
SOME_ID = "00000000-0000-4000-8000-00000000beef"
ROOT = Path(__file__).parents[2]


def test_reflection_describes_the_service(service: str, grpc_channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(grpc_channel)
    assert service in database.get_services()
    described = database.FindFileContainingSymbol(service)
    names = {method.name for item in described.service for method in item.method}
    assert names >= {method.name for method in service_of(service).methods}
    for dependency in described.dependency:
        assert database.FindFileByName(dependency).name == dependency


@pytest.mark.parametrize("whole", [True, False], ids=["server", "service"])
def test_health_reports_serving(service: str, grpc_channel: grpc.Channel, whole: bool) -> None:
    request = health_pb2.HealthCheckRequest(service="" if whole else service)
    stub: Any = health_pb2_grpc.HealthStub(grpc_channel)
    answer = stub.Check(request, timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_server_info_has_name_version_and_proto_services(service: str, grpc_channel: grpc.Channel) -> None:
    stub: Any = server_service_pb2_grpc.ServerServiceStub(grpc_channel)
    info = stub.GetServerInfo(server_service_pb2.GetServerInfoRequest(), timeout=60)
    assert info.service == PROTO_SERVICES[service][0]
    assert info.version == metadata.version(f"mnemesh-{info.service}")
    assert service in info.proto_services


def test_empty_request_succeeds_or_is_refused_with_a_reason(service: str, grpc_stub: Any) -> None:
    for method in service_of(service).methods:
        error = call(grpc_stub, method, new_request(method))
        if error is not None:
            assert reason_of(error), f"{method.full_name}: {error}"
            assert error.code() not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), method.full_name


def test_unimplemented_rpcs_are_refused_and_listed_in_the_readme(service: str, grpc_stub: Any) -> None:
    readme = (ROOT / "services" / PROTO_SERVICES[service][0] / "README.md").read_text()
    listed = readme.partition("UNIMPLEMENTED")[2]
    name = service.rpartition(".")[2]
    whole = any(name in line and re.search(r"\ball\b", line) for line in listed.splitlines())
    for method in service_of(service).methods:
        if _is_unanswered(grpc_stub, method):
            assert whole or method.name in listed, f"{method.full_name} is unanswered and the README is silent"


def test_paged_rpcs_refuse_invalid_pages(service: str, grpc_stub: Any) -> None:
    for method in _paged(service):
        if _is_unanswered(grpc_stub, method):
            continue
        for size in (-1, 1_001):
            request = _addressed(method)
            request.page_size = size
            error = call(grpc_stub, method, request)
            assert error is not None, f"{method.full_name} takes page_size {size}"
            assert (reason_of(error), field_of(error)) == ("INVALID_ARGUMENT", "page_size"), method.full_name
        for token in ("garbage", "e30", "AAAA" * 20, "\u202e"):
            request = _addressed(method)
            request.page_token = token
            error = call(grpc_stub, method, request)
            assert error is not None, f"{method.full_name} takes the page_token {token!r}"
            assert (reason_of(error), field_of(error)) == ("PAGE_TOKEN_INVALID", "page_token"), method.full_name


def test_reads_without_a_page_size_refuse_tokens_of_others(service: str, grpc_stub: Any) -> None:
    for method in _with_tokens(service):
        if method.name.startswith(("Get", "BatchGet")):
            for token in ("garbage", "e30", "AAAA" * 20, "\u202e"):
                request = new_request(method)
                request.page_token = token
                error = call(grpc_stub, method, request)
                assert error is not None, f"{method.full_name} takes the page_token {token!r}"
                assert (reason_of(error), field_of(error)) == ("PAGE_TOKEN_INVALID", "page_token"), method.full_name
            assert "next_page_token" in method.output_type.fields_by_name, method.full_name
            assert reads(method), f"{method.full_name} is not marked NO_SIDE_EFFECTS"


def test_every_paged_rpc_has_the_standard_fields(service: str) -> None:
    for method in _paged(service):
        numbers = {field.name: field.number for field in method.input_type.fields}
        expected = {"page_size": 1, "page_token": 2}
        if method.name.startswith("List"):  # other paged calls have an order of their own
            expected |= {"after_id": 3, "before_id": 4, "order": 5, "order_by": 6}
        assert {name: numbers.get(name) for name in expected} == expected, method.full_name
        assert all(number >= 10 for name, number in numbers.items() if name not in expected), method.full_name
        assert "next_page_token" in method.output_type.fields_by_name, method.full_name
        assert reads(method), f"{method.full_name} is not marked NO_SIDE_EFFECTS"


def test_every_write_has_a_request_id(service: str) -> None:
    for method in service_of(service).methods:
        field = method.input_type.fields_by_name.get("request_id")
        part: Any = method.input_type.fields[0].message_type if method.input_type.fields else None
        if method.client_streaming and field is None and part is not None:
            # the first part of an upload carries it
            field = part.fields_by_name.get("request_id")
        if method.GetOptions().idempotency_level == MethodOptions.IDEMPOTENT:
            assert field is None, f"{method.full_name} may be repeated as it is, and has a request_id"
        elif reads(method):
            assert field is None, f"{method.full_name} reads only, and has a request_id"
        elif method.name not in NOT_REPEATED:
            assert field is not None, f"{method.full_name} has no request_id"
            assert field.number == 1, method.full_name


def test_every_rpc_has_its_own_request_and_response(service: str) -> None:
    for method in service_of(service).methods:
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"


def _paged(service: str) -> list[MethodDescriptor]:
    """Returns the calls with pages. A search has a limit, and a read has what it names, but no page size."""
    return [method for method in _with_tokens(service) if not method.name.startswith(("Search", "Get", "BatchGet"))]


def _with_tokens(service: str) -> list[MethodDescriptor]:
    return [method for method in service_of(service).methods if "page_token" in method.input_type.fields_by_name]


def _is_unanswered(stub: Any, method: MethodDescriptor) -> bool:
    error = call(stub, method, new_request(method))
    return error is not None and error.code() is grpc.StatusCode.UNIMPLEMENTED


def _addressed(method: MethodDescriptor) -> Any:
    """A request whose ids have the right form."""
    request = new_request(method)
    for field in method.input_type.fields:
        if field.name.endswith("_id") and field.number >= 10 and field.type == field.TYPE_STRING:
            prefix = {"conversation_id": "conv", "folder_id": "source"}.get(field.name, field.name.removesuffix("_id"))
            if not field.has_presence:
                setattr(request, field.name, f"{prefix}-{SOME_ID}")
    return request
