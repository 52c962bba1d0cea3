"""The memory of agents as tools of the Model Context Protocol. Needs the extra `mcp`."""

from mnemesh_client.mcp_server.server import ClientSource, memory_server

__all__ = ["ClientSource", "memory_server"]
