"""The network of executions: a proxy for each, and the audit of its connections."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.metrics import Counter, Metric
from mnemesh_sandbox.egress.policy import EgressPolicy, NetworkAccess, NetworkConnection, NetworkGrant, Resolver
from mnemesh_sandbox.egress.proxy import EgressProxy
from mnemesh_sandbox.redaction import Redactor

_CARRIED: Final = "carried"
_EXECUTIONS: Final = 16
"""A program of an MCP server has the network limits of this number of executions."""
_log = structlog.get_logger("mnemesh.tools.network")


class ToolNetworks:
    """Opens the proxies of executions, and logs and counts every connection."""

    def __init__(self, policy: EgressPolicy, resolver: Resolver) -> None:
        self._policy = policy
        self._resolver = resolver
        self._connections = Counter(
            "mnemesh_tools_connections", "Connections of custom tools, by outcome.", ["outcome"]
        )
        self._bytes = Counter("mnemesh_tools_network_bytes", "Bytes that custom tools transferred.", ["direction"])

    @property
    def access(self) -> NetworkAccess:
        """The network access that the operator allows."""
        return self._policy.access

    def proxy(
        self,
        organization_id: str,
        tool: str,
        grant: NetworkGrant | None,
        secrets: Mapping[str, str],
        *,
        is_long: bool = False,
    ) -> EgressProxy | None:
        """Returns the proxy of one execution of a tool; None for a tool without network access.

        Args:
            organization_id: The organization of the tool.
            tool: Its name.
            grant: The hosts that it may connect to.
            secrets: The values, by name, that no record of a connection has.
            is_long: It runs for many calls, and has the limits of as many executions.
        """
        if grant is None:
            return None

        redactor = Redactor({name: value.lower() for name, value in secrets.items()})

        def ended(connection: NetworkConnection) -> None:
            connection.host = redactor.redacted(connection.host)
            self.audit(connection, organization_id, tool)

        policy = self._policy
        if is_long:
            policy = replace(
                policy, max_bytes=policy.max_bytes * _EXECUTIONS, max_attempts=policy.max_attempts * _EXECUTIONS
            )
        return EgressProxy(grant, policy, ended, self._resolver.for_organization(organization_id))

    def audit(self, connection: NetworkConnection, organization_id: str, tool: str) -> None:
        """Logs and counts a connection that has ended."""
        outcome = _CARRIED if connection.refusal is None else connection.refusal.value
        self._connections.inc(outcome)
        self._bytes.inc("sent", by=connection.sent_bytes)
        self._bytes.inc("received", by=connection.received_bytes)
        _log.info(
            "tool_connection",
            organization_id=organization_id,
            tool=tool,
            host=connection.host,
            port=connection.port,
            address=connection.address,
            outcome=outcome,
            sent_bytes=connection.sent_bytes,
            received_bytes=connection.received_bytes,
            duration_ms=round(connection.seconds * 1000, 1),
        )

    def audit_build(self, connection: NetworkConnection) -> None:
        """Logs and counts a connection of the installation of packages."""
        self.audit(connection, "", "packages")

    def metrics(self) -> list[Metric]:
        """Returns the metrics of connections."""
        return [self._connections, self._bytes]
