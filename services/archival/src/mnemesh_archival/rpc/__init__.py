"""The gRPC servicers: decode the request, call the use case, encode the response."""
