"""Conversations: prompts by a template, answers taken apart."""
