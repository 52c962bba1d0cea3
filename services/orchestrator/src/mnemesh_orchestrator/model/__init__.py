"""The domain of the orchestrator: frozen types, filters, rules and validation.

A rule that checks values raises InvalidArgument (metadata: field) for one that breaks it.
"""
