"""The adapters of the embedder port; each is imported only where it is configured."""
