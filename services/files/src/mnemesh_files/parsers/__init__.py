"""Parsers of documents: from the bytes of a file to lines of text with pages, within limits.

Nothing here knows the rest of the service. `inside` runs in a sandbox process, and imports only its siblings, the
standard library and the libraries of documents.
"""
