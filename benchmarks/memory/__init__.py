"""Scores what agents find and answer about long dialogues: `python -m benchmarks.memory --dataset FILE`."""
