"""Prometheus metrics of a server, kept and served only where a metrics port is configured."""

from __future__ import annotations

from typing import Any


class Metrics:
    """Calls by method and code, their durations, and the process, in a registry of this server's own."""

    def __init__(self) -> None:
        import prometheus_client as prometheus  # noqa: PLC0415  (paid for only where it is configured)

        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        prometheus.GCCollector(registry=self.registry)
        self._calls = prometheus.Counter(
            "engram_rpcs", "Finished calls by method and status code.", ["method", "code"], registry=self.registry
        )
        self._seconds = prometheus.Histogram(
            "engram_rpc_seconds",
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
