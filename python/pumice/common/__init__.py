"""What all rooms use."""
