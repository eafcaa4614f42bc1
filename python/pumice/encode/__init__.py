"""Encoding: converts texts to vectors and scores."""
