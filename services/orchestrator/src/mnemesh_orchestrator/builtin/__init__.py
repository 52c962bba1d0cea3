"""The tools that the orchestrator runs itself: speaking, core memory, and the search of recall and archival memory."""
