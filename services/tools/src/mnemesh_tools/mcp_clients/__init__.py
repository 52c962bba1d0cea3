"""The client of MCP servers: transports, sessions and their pool. Only this folder uses the SDK."""
