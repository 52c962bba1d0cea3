"""The port of the operator: metrics and health of a service over HTTP. It is imported only where it is configured."""

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

LIVE_PATH: Final = "/livez"
READY_PATH: Final = "/readyz"
_REQUEST_SECONDS: Final = 10.0


class OperatorPort:
    """A server in threads of its own, so that it answers while the event loop is busy."""

    def __init__(self, host: str, port: int, metrics: Callable[..., Any], is_ready: Callable[[], bool]) -> None:
        """Binds the port and serves.

        Args:
            host: an address.
            port: the port; 0 chooses a free one.
            metrics: the WSGI application of the exposition.
            is_ready: whether the service is ready. It is called in a thread.
        """

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            path = environ.get("PATH_INFO")
            if path not in (LIVE_PATH, READY_PATH):
                found: Iterable[bytes] = metrics(environ, start_response)
                return found
            is_well = path == LIVE_PATH or is_ready()
            start_response("200 OK" if is_well else "503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"ok\n" if is_well else b"not ready\n"]

        kind = _Server6 if ":" in host else _Server
        self._server = make_server(host, port, answer, kind, _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="operator-port", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the server got."""
        return self._server.server_port

    def stop(self) -> None:
        """Closes the port and waits for the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name of the base class)
        """Logs nothing: the port is asked every few seconds."""
