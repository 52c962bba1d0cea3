"""Conversions between the messages of `mnemesh.agents.v1` and the domain for several servicers: x_to_proto and
x_from_proto.

A conversion refuses only what the domain type cannot represent, with InvalidArgument (metadata: field). The use cases
check everything else.
"""
