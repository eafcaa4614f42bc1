"""Encoding: turns texts into vectors and scores."""
