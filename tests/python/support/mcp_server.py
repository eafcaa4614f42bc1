"""A small MCP server over standard input and output, which test_recipes.py starts."""

from __future__ import annotations

from typing import Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("cities")


@server.tool()
def population(city: Literal["Oslo", "Bergen"]) -> int:
    """How many people live in a city."""
    if city == "Bergen":
        raise ToolError("nobody has counted them")
    return 700_000


if __name__ == "__main__":
    server.run("stdio")
