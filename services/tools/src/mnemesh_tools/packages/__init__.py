"""The packages of tools: resolving requirements to a lock, and read-only directories of installed packages."""
