"""From what load() is given to weights on devices."""
