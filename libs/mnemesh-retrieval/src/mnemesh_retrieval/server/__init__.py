"""The vector index on a Qdrant server; the only code that uses its client. Needs the extra `qdrant`."""

from mnemesh_retrieval.server.index import ServerIndex
from mnemesh_retrieval.server.protocol import ServerSettings

__all__ = ["ServerIndex", "ServerSettings"]
