"""Episodes and facts: what recall keeps of messages that left the window."""
