"""The step loop: one engine, two policies.

What stores something of a run raises LeaseLost if another process holds the run now.
"""
