"""`mnemesh/rehearsal`: fixed rules instead of a language model, so that the whole mesh can be tried offline."""

from mnemesh_orchestrator.llm.rehearsal.client import REHEARSAL_HANDLE, RehearsalClient

__all__ = ["REHEARSAL_HANDLE", "RehearsalClient"]
