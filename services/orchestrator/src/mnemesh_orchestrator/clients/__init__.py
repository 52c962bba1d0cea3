"""The other services over gRPC, one class per service.

Every call may raise an MnemeshError: Unavailable or DeadlineExceeded if the service cannot be reached, otherwise an
error with the service's own reason. A call with a `request_id` may be repeated under it without a further effect.
"""
