"""Prometheus metrics: what a service counts and measures, and the registry that serves them over HTTP.

A service creates its metrics, uses them whether or not a metrics port is configured, and registers them through
`Assembly(metrics=[…])`. `prometheus_client` is imported only if a metrics port is configured.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

if TYPE_CHECKING:
    from mnemesh_kit.operator_port import OperatorPort


_log = structlog.get_logger("mnemesh.metrics")

SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of buckets for durations in seconds."""


class Metric(Protocol):
    """A named series of numbers that can be registered."""

    def families(self) -> Iterator[Any]:
        """Yields the metric as families of `prometheus_client`. Runs on the thread of the exposition."""
        ...


class Counter:
    """A number that only grows, for each combination of label values. Any thread may count.

    Example:
        >>> tokens = Counter("mnemesh_model_tokens", "Tokens that models used, by kind.", ["model", "kind"])
        >>> tokens.inc("openai/gpt", "prompt", by=812)
        >>> tokens.value("openai/gpt", "prompt")
        812.0
    """

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:  # noqa: A002  (Prometheus's term)
        """Creates a counter at zero.

        Args:
            name: `mnemesh_<service>_<things>`; the exposition appends `_total`.
            help: one sentence for the exposition.
            labels: the names of the labels; each should have few values.
        """
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()

    def inc(self, *labels: str, by: float = 1.0) -> None:
        """Adds `by` to the number with these label values, in the order of the labels' names."""
        _require_labels(self.name, self.labels, labels)
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + by

    def value(self, *labels: str) -> float:
        """Returns the number with these label values; zero if it was never counted."""
        return self._values.get(labels, 0.0)

    def families(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        with self._lock:
            values = list(self._values.items()) or ([] if self.labels else [((), 0.0)])
        for labels, value in values:
            family.add_metric(labels, value)
        yield family


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number that can go up and down, read by a function when it is scraped.

    Example:
        >>> gauge = Gauge("mnemesh_index_outbox_lag_seconds", "Age of the oldest change not in the index.", lambda: 0.0)
    """

    name: str
    help: str
    read: Callable[[], float]
    """Returns the current number. Runs on the thread of the exposition, so it must be quick and must not wait."""

    def families(self) -> Iterator[Any]:
        """Yields the gauge as one family; without a value if `read` fails."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        family = GaugeMetricFamily(self.name, self.help)
        try:
            family.add_metric((), self.read())
        except Exception:
            _log.exception("gauge_failed", gauge=self.name)
        yield family


class Histogram:
    """The distribution of observed numbers, for each combination of label values. Any thread may observe.

    Example:
        >>> seconds = Histogram("mnemesh_tools_run_seconds", "Duration of tool calls.", ["sandbox"])
        >>> seconds.observe(0.25, "full")
    """

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002  (Prometheus's term)
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = SECONDS,
    ) -> None:
        """Creates a histogram without observations.

        Args:
            name: `mnemesh_<service>_<thing>_<unit>`.
            help: one sentence for the exposition.
            labels: the names of the labels; each should have few values.
            buckets: the upper bounds of the buckets, ascending; a bucket for all larger numbers is added.
        """
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self._bounds = tuple(buckets)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()

    def observe(self, number: float, *labels: str) -> None:
        """Records one number under these label values, in the order of the labels' names."""
        _require_labels(self.name, self.labels, labels)
        with self._lock:
            counts = self._counts.get(labels)
            if counts is None:
                counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
                self._sums[labels] = 0.0
            counts[bisect_left(self._bounds, number)] += 1
            self._sums[labels] += number

    def count(self, *labels: str) -> int:
        """Returns how many numbers were observed under these label values."""
        return sum(self._counts.get(labels, ()))

    def families(self) -> Iterator[Any]:
        from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415

        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        bounds = (*map(str, self._bounds), "+Inf")
        with self._lock:
            series = [(labels, list(counts), self._sums[labels]) for labels, counts in self._counts.items()]
        for labels, counts, total in series:
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
        yield family


class Metrics:
    """The registry of one server, and its exposition over HTTP."""

    def __init__(self, metrics: Sequence[Metric] = ()) -> None:
        """Creates a registry with the process's own metrics, those of its calls, and `metrics`."""
        import prometheus_client as prometheus  # noqa: PLC0415  (only where metrics are configured)

        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        prometheus.GCCollector(registry=self.registry)
        self._calls = Counter("mnemesh_rpcs", "Finished calls by method and status code.", ["method", "code"])
        self._seconds = Histogram(
            "mnemesh_rpc_seconds",
            "Duration of calls; of streams, from the request to the last message.",
            ["method"],
        )
        self._port: OperatorPort | None = None
        own: tuple[Metric, ...] = (self._calls, self._seconds)
        for metric in (*own, *metrics):
            self.register(metric)

    def register(self, metric: Metric) -> None:
        """Adds a metric to the exposition."""
        self.registry.register(_Collector(metric))

    def record(self, method: str, code: str, seconds: float) -> None:
        """Counts one finished call."""
        self._calls.inc(method, code)
        self._seconds.observe(seconds, method)

    def serve(self, host: str, port: int, is_ready: Callable[[], bool]) -> int:
        """Starts the port for the operator; returns its number."""
        from prometheus_client import make_wsgi_app  # noqa: PLC0415

        from mnemesh_kit.operator_port import OperatorPort  # noqa: PLC0415

        self._port = OperatorPort(host, port, make_wsgi_app(self.registry), is_ready)
        return self._port.port

    def stop(self) -> None:
        """Closes the port."""
        if self._port is not None:
            self._port.stop()
            self._port = None


class _Collector:
    """A metric in the form that a registry of `prometheus_client` takes."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Any]:
        return self._metric.families()


def _require_labels(name: str, names: tuple[str, ...], values: tuple[str, ...]) -> None:
    if len(names) != len(values):
        raise ValueError(f"The metric {name} has the labels {names}, not {len(values)} values.")
