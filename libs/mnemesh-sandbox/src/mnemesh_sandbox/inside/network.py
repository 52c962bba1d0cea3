"""The network of a tool with access: a loopback interface with one listener, whose connections the server accepts."""

import fcntl
import socket
import struct

from .plan import NETWORK_NAMESPACE, PROXY_ADDRESS, PROXY_PORT, LayerFailed

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_BACKLOG = 64
# The buffers of a connection are memory of the kernel, which would grow to several megabytes for each.
_BUFFER_BYTES = 106_496  # the kernel doubles it
_BUFFERS = {
    "/proc/sys/net/ipv4/tcp_wmem": f"4096 16384 {2 * _BUFFER_BYTES}",
    "/proc/sys/net/ipv4/tcp_rmem": f"4096 65536 {2 * _BUFFER_BYTES}",
}


def offer_listener(proxy_fd: int) -> None:
    """Sends a listener of this network namespace to the server, which stays outside. Closes the descriptor.

    Raises:
        LayerFailed: The host refuses it.
    """
    try:
        with (
            socket.socket(fileno=proxy_fd) as server,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener,
        ):
            _enable_loopback(listener)
            _limit_buffers()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            listener.bind((PROXY_ADDRESS, PROXY_PORT))
            listener.listen(_BACKLOG)
            socket.send_fds(server, [b"."], [listener.fileno()])
    except OSError as error:
        raise LayerFailed(NETWORK_NAMESPACE, f"its loopback interface: {error}") from error


def _limit_buffers() -> None:
    """Limits the buffers of the connections of this namespace, where the host lets a namespace do so."""
    for path, sizes in _BUFFERS.items():
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(sizes)
        except OSError:
            continue  # /proc/sys is read-only in some containers


def _enable_loopback(any_socket: socket.socket) -> None:
    name = b"lo"
    request = struct.pack("16sH14x", name, 0)
    flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", name, flags | _IFF_UP))


def proxy_environment() -> dict[str, str]:
    """Returns the variables that HTTP clients read to find the proxy."""
    url = f"http://{PROXY_ADDRESS}:{PROXY_PORT}"
    return dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url)
