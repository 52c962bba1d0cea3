"""Rerankers: models that read a query together with each candidate of a search and order the candidates."""
