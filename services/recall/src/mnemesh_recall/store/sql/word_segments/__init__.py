"""The word index of each agent: immutable segments of documents, so that a search reads only rows of its agent."""
