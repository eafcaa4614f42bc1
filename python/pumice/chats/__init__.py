"""Chats: renders conversations as prompts by the model's chat template, and parses the answers."""
