"""Evaluation of search: dialogues with questions and known evidence, and how well a search finds the evidence."""
