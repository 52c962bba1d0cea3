"""OpenTelemetry traces. Nothing is imported unless OTEL_EXPORTER_OTLP_ENDPOINT is set.

Spans of models, tools and memory have the names and attributes of OpenTelemetry's conventions for generative AI.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from mnemesh_kit.access import rule_of
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import typed_error
from mnemesh_kit.extras import install_hint

CONTENT_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable of OpenTelemetry that adds texts of messages and tools to the spans: true or false."""

_MEMORY_RPCS: Final = {
    "create_memory": "CommitEpisode CreateBlock CreateFact InsertPassages",
    "search_memory": "GetMemoryBundle SearchEpisodes SearchFacts SearchFiles SearchMessages SearchPassages",
    "update_memory": "EditBlock InvalidateFact RevertBlock SupersedeFact UpdateBlock UpdateEpisode UpdateFact "
    "UpdatePassage",
    "delete_memory": "DeleteBlock DeleteEpisode DeleteFact DeletePassage DeletePassages EraseMemoryScope",
}
_OPERATIONS: Final = {rpc: operation for operation, names in _MEMORY_RPCS.items() for rpc in names.split()}
"""The operation on memory that an RPC is."""
_OFF: Final = nullcontext()

_tracer: Any = None
"""The tracer of this process; None if tracing is off."""
_has_content = False


def start_tracing(service: str) -> Callable[[], None] | None:
    """Starts to export the spans of the process. The variables of the OpenTelemetry SDK apply.

    Returns:
        A function that exports the remaining spans and stops; None if no endpoint is configured.

    Raises:
        StartupError: the extra `otel` is not installed.
    """
    global _has_content, _tracer  # a process has one tracer, as OpenTelemetry has
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        exporter = _exporter()
    except ImportError as error:
        raise StartupError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed. "
            f"{install_hint('mnemesh-kit', 'otel')}"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"mnemesh-{service}"}))
    provider.add_span_processor(_memory_operations())
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    _instrumentation().GrpcAioInstrumentorClient(filter_=_has_span).instrument()
    _tracer, _has_content = provider.get_tracer("mnemesh"), os.environ.get(CONTENT_VARIABLE, "").lower() == "true"

    def stop() -> None:
        global _tracer  # noqa: PLW0603
        _tracer = None
        provider.shutdown()

    return stop


def _exporter() -> Any:
    """Returns the exporter of the configured protocol: gRPC if none is."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http  # noqa: PLC0415

        return Http()
    if protocol != "grpc":
        raise StartupError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be grpc or http/protobuf, not {protocol!r}.")
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc  # noqa: PLC0415

    return Grpc()


def _memory_operations() -> Any:
    """Returns the processor that names the operation on memory in the spans of RPCs."""
    from opentelemetry.sdk.trace import SpanProcessor  # noqa: PLC0415
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    class MemoryOperations(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002
            operation = _OPERATIONS.get(span.name.rpartition("/")[2]) if span.kind is SpanKind.SERVER else None
            if operation is not None:
                span.set_attribute("gen_ai.operation.name", operation)

    return MemoryOperations()


Attributes = Mapping[str, Any]
"""The attributes of a span. One with the value None is left out."""


def span(name: str, attributes: Callable[[], Attributes]) -> AbstractContextManager[Any]:
    """Records what happens in a `with` block as a span, below the current one.

    Returns:
        A context manager of the span; of None if tracing is off.
    """
    return _OFF if _tracer is None else _record(name, attributes(), is_call=False)


def span_of_call(name: str, attributes: Callable[[], Attributes]) -> AbstractContextManager[Any]:
    """Records a call of another system as `span` does. It is only recorded within a trace: polls make none."""
    return _OFF if _tracer is None or not _is_traced() else _record(name, attributes(), is_call=True)


def start_span(name: str, attributes: Callable[[], Attributes]) -> Any:
    """Starts a span of a call that the caller ends with `end_span`, for generators; None if tracing is off."""
    if _tracer is None:
        return None
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    return _tracer.start_span(name, kind=SpanKind.CLIENT, attributes=_given(attributes()))


def end_span(span_: Any, attributes: Attributes, error: BaseException | None = None) -> None:
    """Ends a span with further attributes, and with the reason of an error. Its text is not recorded."""
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    span_.set_attributes(_given(attributes))
    if error is not None:
        span_.set_attribute("error.type", _reason(error))
        span_.set_status(Status(StatusCode.ERROR))
    span_.end()


def has_content() -> bool:
    """Returns whether spans have the texts of messages and tools."""
    return _has_content


@contextmanager
def _record(name: str, attributes: Attributes, *, is_call: bool) -> Iterator[Any]:
    from opentelemetry import trace  # noqa: PLC0415

    kind = trace.SpanKind.CLIENT if is_call else trace.SpanKind.INTERNAL
    started = _tracer.start_span(name, kind=kind, attributes=_given(attributes))
    error: BaseException | None = None
    try:
        with trace.use_span(started, record_exception=False, set_status_on_exception=False):
            yield started
    except BaseException as raised:
        error = raised
        raise
    finally:
        end_span(started, {}, error)


def _given(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _reason(error: BaseException) -> str:
    return typed_error(error).reason if isinstance(error, Exception) else "CANCELLED"


def _is_traced() -> bool:
    from opentelemetry import trace  # noqa: PLC0415

    return bool(trace.get_current_span().get_span_context().is_valid)


def server_interceptors() -> tuple[Any, ...]:
    """Returns the interceptor that records a span for each call; none if tracing is off.

    It comes after the kit's own interceptor, whose handlers of streams are not generators.
    """
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return ()
    return (_instrumentation().aio_server_interceptor(filter_=_has_span),)


def _has_span(call: Any) -> bool:
    """Returns whether a call has a span. Health, reflection and what services poll have none: they are called often."""
    name = call.method.decode() if isinstance(call.method, bytes) else call.method
    return not name.startswith("/grpc.") and not rule_of(name).is_polled


def current_trace_id() -> str | None:
    """Returns the id of the current trace in hex; None if there is none or tracing is off."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return None
    from opentelemetry import trace  # noqa: PLC0415

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _instrumentation() -> Any:
    """Returns the package that instruments gRPC. Its functions have no types."""
    from opentelemetry.instrumentation import grpc  # noqa: PLC0415

    return grpc
