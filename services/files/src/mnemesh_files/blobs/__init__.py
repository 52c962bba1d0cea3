"""The contents of files as uploaded: the port of a blob store and its adapters."""
