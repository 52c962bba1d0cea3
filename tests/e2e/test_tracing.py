"""OpenTelemetry with the packages that the runtime installs: spans reach a collector, one trace spans the mesh."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector: service → the trace id and the name of each span."""

    address: str = ""
    spans: dict[str, set[tuple[str, str]]] = field(default_factory=dict)

    async def Export(self, request: Any, context: Any) -> Any:
        """Takes spans."""
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            spans = self.spans.setdefault(names["service.name"], set())
            for scope in resource.scope_spans:
                spans.update((span.trace_id.hex(), span.name) for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest_asyncio.fixture
async def collector() -> AsyncIterator[Collector]:
    server, collector = grpc.aio.server(), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield collector
    await server.stop(0)


@pytest.mark.full
async def test_one_turn_is_one_trace_through_the_mesh(collector: Collector, tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_EXPORTER_OTLP_INSECURE": "true"}
    async with asyncio.timeout(scaled(120)), ProcessMesh(tmp_path, environment=environment) as mesh:
        agent = await mesh.client.agents.create("ada", blocks={"human": ""})
        assert "Ada" in await agent.ask("My name is Ada.")
        runs = [run async for run in mesh.client.runs.list(agent_id=agent.id)]
        (step, *_) = [step async for step in mesh.client.runs.steps(runs[0].id)]
    # The processes export what is left when they stop.
    turn = {
        service: {name for id_, name in spans if id_ == step.trace_id} for service, spans in collector.spans.items()
    }
    assert any("SendMessage" in name for name in turn["mnemesh-orchestrator"]), turn
    assert any("GetContext" in name for name in turn["mnemesh-recall"]), turn
    assert any("GetCoreMemory" in name for name in turn["mnemesh-blocks"]), turn
    polls = [name for spans in collector.spans.values() for _, name in spans if "ClaimCallbacks" in name]
    assert not polls, "a mesh without work makes no traces"
