"""What load() needs before a model is built: the path or hub id, the options, adapters, placement, and information in the model's file."""
