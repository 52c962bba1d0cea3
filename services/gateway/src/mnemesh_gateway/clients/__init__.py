"""Adapters of the services that the gateway calls, over gRPC."""
