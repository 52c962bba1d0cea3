"""Prometheus metrics of a server, kept and served only where a metrics port is configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mnemesh_kit.sql.database import TRANSACTIONS


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number of a service's own, read when it is asked for, on another thread."""

    name: str
    help: str
    read: Callable[[], float]


class Metrics:
    """Calls by method and code, their durations, SQL transactions, and the process, in this server's own registry."""

    def __init__(self) -> None:
        import prometheus_client as prometheus  # noqa: PLC0415  (paid for only where it is configured)

        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        prometheus.GCCollector(registry=self.registry)
        self.registry.register(_Transactions())
        self._calls = prometheus.Counter(
            "mnemesh_rpcs", "Finished calls by method and status code.", ["method", "code"], registry=self.registry
        )
        self._seconds = prometheus.Histogram(
            "mnemesh_rpc_seconds",
            "Duration of calls; of streams, from the request to the last message.",
            ["method"],
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300),
            registry=self.registry,
        )
        self._children: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._serving: tuple[Any, Any] | None = None

    def record(self, method: str, code: str, seconds: float) -> None:
        """Counts one finished call."""
        children = self._children.get((method, code))
        if children is None:
            children = self._children[method, code] = (self._calls.labels(method, code), self._seconds.labels(method))
        children[0].inc()
        children[1].observe(seconds)

    def add(self, gauge: Gauge) -> None:
        """Shows a service's own number from now on."""
        import prometheus_client as prometheus  # noqa: PLC0415

        prometheus.Gauge(gauge.name, gauge.help, registry=self.registry).set_function(gauge.read)

    def serve(self, host: str, port: int) -> int:
        """Starts the HTTP exposition in a thread; returns its port."""
        from prometheus_client import start_http_server  # noqa: PLC0415

        self._serving = start_http_server(port, addr=host, registry=self.registry)
        return int(self._serving[0].server_port)

    def stop(self) -> None:
        """Ends the exposition."""
        if self._serving is not None:
            server, thread = self._serving
            server.shutdown()
            server.server_close()
            thread.join()
            self._serving = None


class _Transactions:
    """SQL transactions of the process, read when they are asked for."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

        family = CounterMetricFamily("mnemesh_sql_transactions", "SQL transactions begun, by kind.", labels=["kind"])
        for kind, count in TRANSACTIONS.items():
            family.add_metric([kind], count)
        yield family
