"""The use cases: everything that callers can do with agents, conversations, runs, identities and models.

Each raises NotFound for what the organization of the caller does not have, InvalidArgument (metadata: field) for a
value that breaks a rule, RequestIdReused for a key that was used before with other content, and Unavailable if a
service that it needs cannot be reached. The docstrings name other errors, and those that mean more.
"""
