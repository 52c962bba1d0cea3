"""What a model is shown: the system message, the envelopes of messages, the schemas of tools."""
