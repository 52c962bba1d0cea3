"""The stores: SQL for the registry and the ledger, the vector index for the passages."""
