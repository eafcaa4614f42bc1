"""Converts texts to token ids, and token ids to texts."""
