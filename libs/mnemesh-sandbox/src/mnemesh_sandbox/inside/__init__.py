"""The code that runs inside a sandbox process, in an interpreter with only the standard library.

The server imports only the plan, which both sides share.
"""
