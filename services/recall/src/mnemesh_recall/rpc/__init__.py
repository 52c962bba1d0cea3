"""The RPCs of recall: decode, call, encode."""
