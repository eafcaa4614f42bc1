"""The page's files, which are read once and served from memory. A request can only name files in the folder, because its path is never
passed to the file system."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from .calls import Call
from .failures import Refused

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Returns name -> (content, MIME type, ETag) for each file."""
    found = {}
    for each in files("pumice.serve").joinpath("page").iterdir():
        if (kind := _KINDS.get(each.name.rpartition(".")[2])) is not None:
            content = each.read_bytes()
            found[each.name] = content, kind, f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    return found


async def page(call: Call) -> None:
    """Gives the page of this server, or one of its files."""
    name = call.scope["path_params"].get("name", "index.html")
    found = (await call.server.aside(_files)).get(name)
    if found is None:
        raise Refused(404, f"the page has no file {name[:80]!r}", code="unknown_path")
    content, kind, tag = found
    headers = {"etag": tag, "cache-control": "no-cache"}
    if call.headers.get("if-none-match") == tag:
        await call.send(b"", 304, kind, headers)
    else:
        await call.send(content, 200, kind, headers)
