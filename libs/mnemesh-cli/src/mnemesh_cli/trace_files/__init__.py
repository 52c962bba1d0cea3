"""The memory of an agent as JSONL files: export, updates and import."""
