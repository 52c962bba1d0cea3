"""What outgoing calls carry: the caller's identity, the correlation id, a deadline and a request id."""

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from mnemesh_kit.auth import AUTHORIZATION_KEY, MESH_AUDIENCE, TokenMint, read_keys
from mnemesh_kit.call_context import (
    METADATA_KEY,
    ORGANIZATION_KEY,
    ROLE_KEY,
    SUBJECT_KEY,
    Role,
    current_correlation_id,
    current_principal,
    remaining,
)
from mnemesh_kit.config import TlsSettings
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, by_reason
from mnemesh_kit.network import is_loopback
from mnemesh_kit.retries import request_id_number, service_descriptor
from mnemesh_kit.services import SERVICES
from mnemesh_kit.tls.credentials import ClientTls, host_of

DEADLINE_SECONDS: Final = 10.0
STREAM_DEADLINE_SECONDS: Final = 3600.0

C = TypeVar("C")
Metadata = tuple[tuple[str, str], ...]
# The standard library's logger, because this module is also part of programs that do not configure the kit's.
_log = logging.getLogger("mnemesh.channels")
_SERVICE_OF: Final = {name: spec.name for spec in SERVICES for name in spec.proto_services}


class OutgoingCalls(Generic[C]):
    """The credentials, the deadline, the known errors and the channels of the calls of a process."""

    def __init__(
        self,
        *,
        errors: Sequence[type[MnemeshError]] = (),
        auth_key_file: str | None = None,
        role: Role = Role.ADMIN,
        token: str | None = None,
        deadline: float = DEADLINE_SECONDS,
        tls: TlsSettings | ClientTls | None = None,
    ) -> None:
        """Reads the files of keys and certificates. Nothing connects before the first call.

        Args:
            errors: error classes of the caller. A remote error with the reason of one is raised as that class.
            auth_key_file: a file of keys. Calls carry tokens for the current principal, signed with the first key.
            role: the role of these tokens. A service of the mesh calls the others as one. With another role, calls for
                a principal that has a role of a client carry that one, and the agents to which it is limited.
            token: a bearer token for all calls instead, for clients outside of the mesh.
            deadline: the timeout in seconds of calls without a timeout.
            tls: the files for TLS. None: connections are not encrypted, except to addresses `tls://…`.

        Raises:
            ConfigError: a file of keys or certificates is missing or wrong.
        """
        self.known = by_reason(errors)
        self.deadline = deadline
        self._mint = TokenMint(read_keys(auth_key_file)[0], role) if auth_key_file is not None else None
        self._role = role
        self._token = token
        self.tls = tls if isinstance(tls, ClientTls) else ClientTls(tls)
        self._head: Metadata = ((ROLE_KEY, role.value),) if role is Role.SERVICE else ()
        self._channels: dict[str, C] = {}

    def warn_of_plain_token(self, target: str) -> None:
        """Logs a warning if other machines could read the tokens that are sent to a target."""
        has_token = self._token is not None or self._mint is not None
        if has_token and not self.tls.encrypts(target) and not is_loopback(host_of(target)):
            _log.warning("Tokens are sent to %s without TLS. Set MNEMESH_GRPC_TLS_CA_FILE.", target)

    def audience(self, method: str) -> str:
        """Returns the audience of the tokens for a method. A token of a service is valid for the called one only."""
        is_service = self._role is Role.SERVICE
        return _SERVICE_OF.get(method.split("/")[1], MESH_AUDIENCE) if is_service else MESH_AUDIENCE

    def metadata(self, audience: str) -> Metadata:
        """Returns the metadata of a call: the correlation id, and a token or the current principal."""
        correlation_id = current_correlation_id()
        head = (*self._head, (METADATA_KEY, correlation_id)) if correlation_id else self._head
        if self._token is not None:
            return (*head, (AUTHORIZATION_KEY, f"Bearer {self._token}"))
        principal = current_principal()
        if self._mint is not None:
            return (*head, (AUTHORIZATION_KEY, self._mint.header(principal, audience)))
        return (*head, (ORGANIZATION_KEY, principal.organization_id), (SUBJECT_KEY, principal.subject_id))


def bounded(timeout: float) -> float:
    """Returns a timeout in seconds, or the time that the request being served has left, if that is less."""
    left = remaining()
    if left is None:
        return timeout
    if left <= 0:
        raise DeadlineExceeded("The caller's deadline has passed.")
    return min(timeout, left)


def adding_request_id(method: str, serializer: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Returns a serializer that adds a new `request_id` to a request without one.

    The message itself is not changed. gRPC's retries send the same bytes, and so the same id.
    """
    _, service, name = method.split("/")
    descriptor = service_descriptor(service)
    number = request_id_number(descriptor.methods_by_name[name]) if descriptor is not None else None
    if number is None or serializer is None:
        return serializer
    tag = bytes([number << 3 | 2, 36]) if number < 16 else None
    if tag is None:
        raise ValueError(f"{method}: request_id must have a field number below 16")

    def serialize(request: Any) -> bytes:
        data = serializer(request)
        return data if request.request_id else data + tag + str(uuid.uuid4()).encode()

    return serialize
