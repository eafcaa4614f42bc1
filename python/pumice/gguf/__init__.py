"""Writes GGUF files: from safetensors folders, and from other GGUF files with the weights in other formats."""
