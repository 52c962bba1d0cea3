"""The other rooms over gRPC: one adapter per room, its conversion beside it."""
