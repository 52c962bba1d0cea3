"""The outbox and the indexer: they keep a vector index in agreement with records that are stored in SQL."""
