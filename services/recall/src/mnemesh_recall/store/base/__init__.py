"""The Protocols of recall's stores. Their docstrings are the contract."""

from mnemesh_recall.store.base.episodes import EpisodeStore as EpisodeStore
from mnemesh_recall.store.base.indexed import IndexedMemories as IndexedMemories
from mnemesh_recall.store.base.indexed import IndexedMessages as IndexedMessages
from mnemesh_recall.store.base.memory_audits import MemoryAuditStore as MemoryAuditStore
from mnemesh_recall.store.base.messages import MessageStore as MessageStore
from mnemesh_recall.store.base.traces import TraceStore as TraceStore
from mnemesh_recall.store.base.word_segments import WordSegmentStore as WordSegmentStore
