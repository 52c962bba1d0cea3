"""The channels of the synchronous client, against a server that crashes."""

import socket
import struct
import threading
from concurrent.futures import Future
from typing import Final

import pytest
from mnemesh.agents.v1 import runs_service_pb2, runs_service_pb2_grpc
from mnemesh_client.sync_transport import Channels
from mnemesh_kit.errors import Unavailable
from mnemesh_testkit.timeouts import scaled

TIMES: Final = 5  # Without the option, two of three such streams hang.
# The frames SETTINGS, empty, and its acknowledgement, of HTTP/2.
SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0" + b"\0\0\0\4\1\0\0\0\0"
BEGINNING: Final = 200  # bytes that are more than a connection begins with, and less than the first call


def test_a_stream_that_begins_while_the_server_crashes_is_unavailable() -> None:
    """gRPC repeats the call, finds no server, and gives up. It must not hang."""
    ends = [_stream_to_a_crash() for _ in range(TIMES)]
    for end in ends:
        with pytest.raises(Unavailable):
            end.result(scaled(20))


def _stream_to_a_crash() -> Future[None]:
    """Returns how a stream ends whose server resets the connection at its first call, and is gone."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_crash, args=[listener], daemon=True).start()
    end: Future[None] = Future()

    def read() -> None:
        channels = Channels()
        try:
            stub = runs_service_pb2_grpc.RunServiceStub(channels.channel(f"127.0.0.1:{port}"))
            list(stub.StreamRun(runs_service_pb2.StreamRunRequest(run_id="run-1"), timeout=30))
            end.set_result(None)
        except BaseException as error:
            end.set_exception(error)
        finally:
            channels.close()

    port = listener.getsockname()[1]
    threading.Thread(target=read, daemon=True).start()
    return end


def _crash(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.sendall(SETTINGS)
    received = 0
    while received < BEGINNING:
        received += len(connection.recv(65536))
    listener.close()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
