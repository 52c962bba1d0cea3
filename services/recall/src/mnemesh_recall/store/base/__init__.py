"""The Protocols of recall's stores; their docstrings are the contract."""

from mnemesh_recall.store.base.episodes import MemoryStore as MemoryStore
from mnemesh_recall.store.base.messages import RecallStore as RecallStore
from mnemesh_recall.store.base.traces import TraceStore as TraceStore
