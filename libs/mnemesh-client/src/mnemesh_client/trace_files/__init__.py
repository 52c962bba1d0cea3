"""An agent's memory as JSONL files, for people and other programs to read: written, kept current, and read back."""
