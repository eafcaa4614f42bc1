"""Sources and options of load(): paths, the hub, adapters, placement, and a file's own information."""
