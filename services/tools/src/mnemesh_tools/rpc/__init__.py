"""The gRPC servicers of the tools service."""
