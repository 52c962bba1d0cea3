"""Runs in this process: who carries them out, and who follows them.

What stores something of a run raises LeaseLost if another process holds the run now.
"""
