"""MCP: a model in this process calls the tools of an MCP server. Needs pumice[grammar] and mcp.

`python examples/recipes/with_mcp.py MODEL QUESTION COMMAND ARGUMENT ...` starts the server COMMAND and prints the answer to QUESTION."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Sequence
from typing import Any

from mcp import Client, StdioServerParameters

import pumice


async def call(client: Client, name: str, **arguments: Any) -> str:
    """Calls a tool. An error of the tool is raised, so that run_tools() tells it to the model."""
    found = await client.call_tool(name, arguments)
    text = "\n".join(block.text for block in found.content if block.type == "text")
    if found.is_error:
        raise RuntimeError(text)
    return text


async def ask(model: pumice.Model, server: str | StdioServerParameters, messages: str | Sequence[Any], **options: Any) -> pumice.ToolRun:
    """Answers a conversation with all tools of a server, which is a URL or a command."""
    async with Client(server) as client:
        listed = (await client.list_tools()).tools
        schemas = [{"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema} for tool in listed]
        tools = [(schema, functools.partial(call, client, schema["name"])) for schema in schemas]
        return await pumice.arun_tools(model, messages, tools=tools, **options)


if __name__ == "__main__":
    with pumice.load(sys.argv[1]) as loaded:
        print(asyncio.run(ask(loaded, StdioServerParameters(command=sys.argv[3], args=sys.argv[4:]), sys.argv[2])))
