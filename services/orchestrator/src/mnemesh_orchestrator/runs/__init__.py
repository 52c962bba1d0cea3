"""Runs in this process: who carries them out, and who follows them."""
