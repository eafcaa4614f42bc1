"""Writing GGUF files: from safetensors folders, and from other GGUF files in other formats."""
