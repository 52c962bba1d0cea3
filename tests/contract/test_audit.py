"""Who changed what is in the audit log: every RPC that changes something is called twice, and has one entry.

The calls come from the descriptors, so that an RPC cannot be forgotten.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import MethodDescriptor
from mnemesh.server.v1 import audit_service_pb2 as rpc
from mnemesh.server.v1 import audit_service_pb2_grpc
from mnemesh_kit.access import rule_of
from mnemesh_kit.audit import ids_in
from mnemesh_kit.call_context import METADATA_KEY, ORGANIZATION_KEY, SUBJECT_KEY, Principal, as_principal
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fuzzing.contract import methods, new_request, reads
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES
from mnemesh_testkit.timeouts import scaled

from .conftest import MeshThread
from .resources import everything
from .valid_requests import Ids, least_request

SECRET = "heronKp4tRs9"
CALLER = Principal(new_id("org"), new_id("user"))
ELSEWHERE = {
    "CompactConversation": "needs a long conversation: tests/integration/test_compaction.py",
    "ExtractMemories": "needs a model: tests/integration/test_audit.py",
    "AnswerApproval": "needs a model: tests/integration/test_approvals.py",
    "ImportAgent": "needs an export: tests/integration/test_export.py",
    "RefreshProvider": "needs a provider that answers: tests/integration/test_audit.py",
    "RunMcpServerTool": "needs a server that answers: services/tools/tests/mcp_servers/test_server_tools.py",
    "StreamMcpServerTool": "needs a server that answers: services/tools/tests/mcp_servers/test_server_tools.py",
    "RefreshMcpServer": "needs a server that answers: services/tools/tests/mcp_servers/test_server_tools.py",
    "CompleteMcpAuthorization": "needs a browser: services/tools/tests/mcp_servers/test_authorizations.py",
    "ReceiveMcpAuthorization": "needs a browser: services/tools/tests/mcp_servers/test_authorization_replicas.py",
}
"""RPCs whose entries other tests look for, and why."""
# Requests that have to differ from the least one. <Method> is the id of what an earlier call made.
REQUESTS = {
    "CreateProvider": 'provider { name: "made" type: "vllm" base_url: "http://127.0.0.1:1" }',
    "UpdateModel": 'model { handle: "mnemesh/rehearsal" display_name: "x" } update_mask { paths: "display_name" }',
    "ForkConversation": 'conversation_id: "<CreateConversation>"',
    "UpsertIdentity": 'identity { identifier_key: "j" name: "n" type: IDENTITY_TYPE_USER }',
    "CreateBlock": 'block { label: "made" }',
    "InvalidateFact": 'operation { fact_id: "<CreateFact>" }',
    "CreateTool": """tool { source_code: 'def made() -> str:\\n    "Made."\\n    return "x"' }""",
    "UpsertTool": """tool { source_code: 'def other() -> str:\\n    "Made."\\n    return "x"' }""",
    "ExecuteTool": """ad_hoc { source_code: 'def made() -> str:\\n    "Made."\\n    return "x"' } arguments: "{}" """,
    "RunCode": 'language: CODE_LANGUAGE_PYTHON code: "1"',
    "RunCodeWithTools": 'start { program { language: CODE_LANGUAGE_PYTHON code: "1" } }',
    "CreateMcpServer": 'mcp_server { name: "made" sse { url: "http://127.0.0.1:1/sse" } }',
    "UpdateMcpServer": 'mcp_server { id: "<CreateMcpServer>" name: "x" } update_mask { paths: "name" }',
    "DeleteMcpServer": 'mcp_server_id: "<CreateMcpServer>"',
    "DeleteConversation": 'conversation_id: "<CreateConversation>"',
    "EraseIdentity": 'identity_id: "<UpsertIdentity>"',
    "EraseMemoryScope": 'scope { agent_id: "<agent>" }',
    "DeletePassages": 'archive_id: "<archive>" passage_ids: "<InsertPassages>"',
    "DeleteMessage": 'message_id: "<answer>"',
}
LAST = ("DeleteFolder", "DeleteArchive", "DeleteAgent")


@pytest.fixture(scope="module")
def ours(threaded_mesh: MeshThread) -> Ids:
    """The resources of the caller, which all contain the secret."""

    async def populate() -> Ids:
        with as_principal(CALLER):
            return await everything(threaded_mesh.mesh, SECRET)

    return threaded_mesh.run(populate())  # type: ignore[no-any-return]


def audited_methods() -> Sequence[MethodDescriptor]:
    """Returns the RPCs that the test calls, in an order in which all of them have something to change."""

    def rank(method: MethodDescriptor) -> int:
        if method.name in LAST:
            return 3 + LAST.index(method.name)
        return 2 if method.name.startswith(("Delete", "Erase")) else int(method.name.startswith("Detach"))

    audited = [method for method in methods() if rule_of(path_of(method)).is_audited]
    return sorted((method for method in audited if method.name not in ELSEWHERE), key=rank)


def path_of(method: MethodDescriptor) -> str:
    assert method.containing_service is not None
    return f"/{method.containing_service.full_name}/{method.name}"


class Caller:
    """Calls the services of a mesh as a client of the caller's organization."""

    def __init__(self, mesh: MeshThread) -> None:
        self._addresses = mesh.mesh.addresses
        self._identity = [(ORGANIZATION_KEY, CALLER.organization_id), (SUBJECT_KEY, CALLER.subject_id)]

    def call(self, method: MethodDescriptor, request: Any, correlation_id: str) -> Any:
        owner, module = PROTO_SERVICES[path_of(method).split("/")[1]]
        with grpc.insecure_channel(self._addresses[owner]) as channel:
            stub = getattr(import_module(module), f"{method.containing_service.name}Stub")(channel)  # type: ignore[union-attr]
            answer = getattr(stub, method.name)(
                iter([request]) if method.client_streaming else request,
                timeout=scaled(60),
                metadata=[*self._identity, (METADATA_KEY, correlation_id)],
            )
            return list(answer) if method.server_streaming else answer

    def entries(self, service: str, **filter_: Any) -> Iterator[rpc.AuditEntry]:
        """Yields entries, oldest first. The orchestrator has those of every service."""
        request = rpc.ListAuditEntriesRequest(
            service=service, order="SORT_ORDER_ASCENDING", filter=filter_, page_size=7
        )
        with grpc.insecure_channel(self._addresses["orchestrator"]) as channel:
            stub: Any = audit_service_pb2_grpc.AuditServiceStub(channel)
            while True:
                page = stub.ListAuditEntries(request, metadata=self._identity, timeout=scaled(60))
                yield from page.entries
                if not page.next_page_token:
                    return
                request.page_token = page.next_page_token


@pytest.mark.timeout(scaled(300))
def test_every_change_by_a_client_has_one_entry(threaded_mesh: MeshThread, ours: Ids) -> None:
    caller, made = Caller(threaded_mesh), {**ours, "answer": ours["message"][-1:]}
    for number, method in enumerate(audited_methods()):
        owner = PROTO_SERVICES[path_of(method).split("/")[1]][0]
        request = _request(method, made)
        if "request_id" in method.input_type.fields_by_name:
            request.request_id = f"audit-{number}"
        before = {entry.id for entry in caller.entries(owner)}
        answer = caller.call(method, request, f"change-{number}")
        if getattr(request, "request_id", ""):
            with suppress(grpc.RpcError):  # some find nothing to change any more
                caller.call(method, request, "repeat")
        new = [entry for entry in caller.entries(owner) if entry.id not in before]
        assert len(new) == 1, f"{method.full_name} has {len(new)} entries"
        assert new[0] == rpc.AuditEntry(
            id=new[0].id,
            create_time=new[0].create_time,
            service=owner,
            subject_id=CALLER.subject_id,
            role="service",
            method=path_of(method)[1:],
            resource_ids=new[0].resource_ids,
            correlation_id=f"change-{number}",
            request_id=getattr(request, "request_id", ""),
        )
        if not isinstance(answer, list) and (ids := tuple(ids_in(answer))):
            made[method.name] = ids
            assert set(new[0].resource_ids) & {*ids, *ids_in(request)}, f"{method.full_name}: {new[0]}"


def test_reads_runs_and_refused_calls_have_no_entries_and_no_entry_has_contents(
    threaded_mesh: MeshThread, ours: Ids
) -> None:
    """After the calls of the test before, and those that created the resources."""
    caller = Caller(threaded_mesh)
    audited = {path_of(method)[1:] for method in methods() if rule_of(path_of(method)).is_audited}
    (update,) = (method for method in methods() if method.name == "UpdateBlock")
    request = least_request(update, {**ours, "block": [new_id("block")]})
    with pytest.raises(grpc.RpcError):
        caller.call(update, request, "refused")
    entries = [
        entry for owner in sorted({owner for owner, _ in PROTO_SERVICES.values()}) for entry in caller.entries(owner)
    ]
    assert {entry.method for entry in entries} <= audited
    assert "refused" not in {entry.correlation_id for entry in entries}
    assert SECRET not in str(entries)


def test_rpcs_that_are_not_audited_read_or_have_records_of_their_own() -> None:
    unaudited = {
        method.name
        for method in methods()
        if not reads(method) and rule_of(path_of(method)).is_for_clients and not rule_of(path_of(method)).is_audited
    }
    assert unaudited == {
        *("SendMessage", "SendMessageAndWait", "StartRun", "RetryRun", "CancelRuns", "StartBatch", "CancelBatch"),
        *("StartSleeptimeRuns", "StartMcpAuthorization"),
        *("GrepFiles", "SearchFiles", "StartUpload", "WriteUpload", "CancelUpload"),
    }


def _request(method: MethodDescriptor, known: Ids) -> Any:
    text = REQUESTS.get(method.name)
    if text is None:
        return least_request(method, known)
    return text_format.Parse(re.sub(r"<(\w+)>", lambda found: known[found[1]][0], text), new_request(method))
