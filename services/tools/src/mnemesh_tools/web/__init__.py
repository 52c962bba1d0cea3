"""The web: providers of searches, and pages that are downloaded and read."""
