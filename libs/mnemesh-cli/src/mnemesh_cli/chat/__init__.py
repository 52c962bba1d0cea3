"""The chat: the editor of messages, the conversation, and the display of a turn."""
