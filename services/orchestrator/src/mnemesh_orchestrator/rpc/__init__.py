"""The RPCs of the orchestrator. A servicer decodes the request, calls a use case, and encodes the result."""
