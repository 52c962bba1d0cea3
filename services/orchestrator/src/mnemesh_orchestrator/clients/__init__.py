"""Adapters of the other services over gRPC, one per port, with their conversions. The ports define the methods."""
