"""Asynchronous calls of a model, for asyncio event loops."""
