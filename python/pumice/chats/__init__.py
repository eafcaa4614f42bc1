"""Conversations: prompts by a chat template, and answers taken apart."""
