"""What load() needs before it builds a model: the path or hub id, the options, adapters, placement, and information in the model's file."""
