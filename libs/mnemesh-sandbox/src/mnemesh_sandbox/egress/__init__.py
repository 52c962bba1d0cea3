"""The network access of tools: grants of hosts, and the proxy that carries every connection and checks it."""
