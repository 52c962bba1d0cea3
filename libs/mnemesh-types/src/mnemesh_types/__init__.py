"""The types of `mnemesh.types.v1`, shared by every service, with their conversion to and from protobuf."""
