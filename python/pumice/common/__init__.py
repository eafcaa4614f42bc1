"""Helpers that every part of the package uses."""
