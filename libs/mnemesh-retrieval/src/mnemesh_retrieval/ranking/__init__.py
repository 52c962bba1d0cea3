"""The ranking of texts of dialogues and documents, the same for messages and passages: pure functions."""
