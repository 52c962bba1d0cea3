"""The gRPC servicers of core memory."""
