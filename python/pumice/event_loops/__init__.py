"""Calls that an asyncio event loop waits for."""
