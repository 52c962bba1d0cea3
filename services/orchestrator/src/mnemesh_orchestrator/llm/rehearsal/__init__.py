"""`mnemesh/rehearsal`: no language model, but fixed rules that let the whole machine be seen offline."""

from mnemesh_orchestrator.llm.rehearsal.client import REHEARSAL_HANDLE, RehearsalClient

__all__ = ["REHEARSAL_HANDLE", "RehearsalClient"]
