"""The parsers of documents. They run in a sandbox process, one document each."""
