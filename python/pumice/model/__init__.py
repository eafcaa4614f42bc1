"""load() and the Model that it returns."""
