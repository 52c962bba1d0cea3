"""The vector index of messages, episodes, and facts, and the indexer that keeps it current."""
