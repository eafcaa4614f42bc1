"""Chats: renders conversations as prompts with the model's chat template, and parses the answers."""
