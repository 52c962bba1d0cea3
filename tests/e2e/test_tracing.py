"""OpenTelemetry with the packages that the runtime installs: spans reach a collector, one trace spans the mesh."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from aiohttp import web
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@dataclass
class Span:
    """A span of a collector."""

    service: str
    trace_id: str
    id: str
    parent: str
    name: str
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector, over gRPC and over HTTP."""

    grpc_address: str = ""
    http_address: str = ""
    spans: list[Span] = field(default_factory=list)

    async def Export(self, request: Any, context: Any) -> Any:
        """Takes spans."""
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            self.spans += [
                Span(
                    service,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    _values(span.attributes),
                    span.status.code == span.status.STATUS_CODE_ERROR,
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        return trace_service_pb2.ExportTraceServiceResponse()

    async def take(self, request: web.Request) -> web.Response:
        """Takes spans over HTTP."""
        body = await request.read()
        answer = await self.Export(trace_service_pb2.ExportTraceServiceRequest.FromString(body), None)
        return web.Response(body=answer.SerializeToString(), content_type="application/x-protobuf")

    def within(self, span: Span) -> list[Span]:
        """Returns the spans below a span."""
        children = [child for child in self.spans if child.parent == span.id]
        return [*children, *(found for child in children for found in self.within(child))]


def _values(attributes: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@pytest_asyncio.fixture
async def collector() -> AsyncIterator[Collector]:
    server, collector = grpc.aio.server(), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.grpc_address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.http_address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield collector
    await runner.cleanup()
    await server.stop(0)


@pytest.mark.full
async def test_one_turn_is_one_trace_through_the_mesh(collector: Collector, tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc_address, "OTEL_EXPORTER_OTLP_INSECURE": "true"}
    async with asyncio.timeout(scaled(120)), ProcessMesh(tmp_path, environment=environment) as mesh:
        agent = await mesh.client.agents.create("ada", blocks={"human": ""})
        assert "Ada" in await agent.ask("My name is Ada.")
        runs = [run async for run in mesh.client.runs.list(agent_id=agent.id)]
        (step, *_) = [step async for step in mesh.client.runs.steps(runs[0].id)]
    # The processes export what is left when they stop.
    turn = [span for span in collector.spans if span.trace_id == step.trace_id]
    for service, rpc in (("orchestrator", "SendMessage"), ("recall", "GetContext"), ("blocks", "GetCoreMemory")):
        assert any(span.service == f"mnemesh-{service}" and rpc in span.name for span in turn), (service, turn)
    polls = [span.name for span in collector.spans if "ClaimCallbacks" in span.name]
    assert not polls, "a mesh without work makes no traces"


@pytest.mark.parametrize("content", [False, True])
async def test_a_turn_is_shown_by_the_conventions_for_generative_ai(
    collector: Collector, tmp_path: Path, content: bool
) -> None:
    """Langfuse, Phoenix and Grafana read these names. Langfuse takes spans over HTTP only."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.http_address,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        CONTENT: str(content).lower(),
    }
    async with (
        asyncio.timeout(scaled(120)),
        ProcessMesh(tmp_path, environment=environment, one_process=True) as mesh,
    ):
        agent = await mesh.client.agents.create("ada", blocks={"human": ""})
        assert "Ada" in await agent.ask("My name is Ada.")
    (turn,) = [span for span in collector.spans if span.name == "invoke_agent ada"]
    assert turn.attributes["gen_ai.agent.id"] == agent.id
    below = collector.within(turn)
    calls = [span for span in below if span.attributes.get("gen_ai.operation.name") == "chat"]
    assert len(calls) == 2
    assert {call.name for call in calls} == {"chat rehearsal"}
    assert all(call.attributes["gen_ai.usage.input_tokens"] > 0 for call in calls)
    (tool,) = [span for span in below if span.name.startswith("execute_tool ")]
    inside = collector.within(tool)
    assert any(span.attributes.get("gen_ai.operation.name") == "update_memory" for span in inside), inside
    assert any(span.attributes.get("db.operation.name") == "write" for span in inside), inside
    assert "unset" not in {
        span.attributes.get("mnemesh.transaction", "unset") for span in inside if "db.namespace" in span.attributes
    }
    texts = [name for span in collector.spans for name, value in span.attributes.items() if "My name is" in str(value)]
    if content:
        assert "gen_ai.input.messages" in texts
        (first, *_) = sorted(calls, key=lambda call: call.attributes["gen_ai.usage.input_tokens"])
        assert json.loads(first.attributes["gen_ai.input.messages"])[-1]["role"] == "user"
        assert "Ada" in tool.attributes["gen_ai.tool.call.arguments"]
        assert "gen_ai.output.messages" in first.attributes
    else:
        assert texts == []
        assert "Ada" not in str([span.attributes for span in below if span is not turn])
