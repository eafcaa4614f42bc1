"""What there is to run on, and whether all of it works."""
