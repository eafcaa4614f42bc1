"""load() and the Model that it gives."""
