"""The domain of recall: messages, context windows, episodes, facts, traces, and the rules that they follow."""
