"""The inside of a sandbox process. The standard library only: these files run in a bare interpreter.

Nothing here is imported by the server except the plan that both sides share.
"""
