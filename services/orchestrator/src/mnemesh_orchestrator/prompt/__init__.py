"""The texts that a model sees: the system message and the envelopes of messages."""
