"""The tools that the orchestrator runs itself: speech, core memory, and search of recall and archival memory."""
