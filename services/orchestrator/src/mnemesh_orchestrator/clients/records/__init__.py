"""The records of agents in the other services, over gRPC. They stay messages of the contracts on their way."""
