"""OpenTelemetry traces. Nothing is imported unless OTEL_EXPORTER_OTLP_ENDPOINT is set."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from mnemesh_kit.access import RPC_RULES, UNLISTED
from mnemesh_kit.config import StartupError
from mnemesh_kit.extras import install_hint


def start_tracing(service: str, env: Mapping[str, str] = os.environ) -> Callable[[], None] | None:
    """Starts to export the spans of the process's gRPC servers and channels.

    Returns:
        A function that exports the remaining spans and stops; None if no endpoint is configured.

    Raises:
        StartupError: the extra `otel` is not installed.
    """
    if not env.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise StartupError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed. "
            f"{install_hint('mnemesh-kit', 'otel')}"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"mnemesh-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _instrumentation().GrpcAioInstrumentorClient(filter_=_has_span).instrument()
    stop: Callable[[], None] = provider.shutdown
    return stop


def server_interceptors(env: Mapping[str, str] = os.environ) -> tuple[Any, ...]:
    """Returns the interceptor that records a span for each call; none if tracing is off.

    It comes after the kit's own interceptor, whose handlers of streams are not generators.
    """
    if not env.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return ()
    return (_instrumentation().aio_server_interceptor(filter_=_has_span),)


def _has_span(call: Any) -> bool:
    """Returns whether a call has a span. Health, reflection and what services poll have none: they are called often."""
    name = call.method.decode() if isinstance(call.method, bytes) else call.method
    return not name.startswith("/grpc.") and not RPC_RULES.get(name, UNLISTED).is_polled


def current_trace_id(env: Mapping[str, str] = os.environ) -> str | None:
    """Returns the id of the current trace in hex; None if there is none or tracing is off."""
    if not env.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return None
    from opentelemetry import trace  # noqa: PLC0415

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _instrumentation() -> Any:
    """Returns the package that instruments gRPC. Its functions have no types."""
    from opentelemetry.instrumentation import grpc  # noqa: PLC0415

    return grpc
