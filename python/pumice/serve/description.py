"""The content of /openapi.json, made from the tables of fields. https://spec.openapis.org/oas/v3.1.0"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .files import UPLOAD

if TYPE_CHECKING:
    from .server import Server

_ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The key is missing or wrong.",
    "404": "There is no such model or response.",
    "413": "The body is too large.",
    "429": "Too many requests wait; Retry-After says when to try again.",
    "500": "The request failed on this side.",
    "503": "The server loads or stops.",
}


def describe(server: Server) -> dict[str, Any]:
    """Returns the OpenAPI description of all paths of a server."""
    import pumice

    paths: dict[str, Any] = {}
    for method, path, handler, _, fields, _, receive in server.paths:
        about = (handler.__doc__ or "").strip().split("\n")[0]
        plain = path.replace("{name:path}", "{name}")
        operation: dict[str, Any] = {
            "summary": about,
            "operationId": method.lower() + re.sub(r"\W", "_", re.sub("[{}]", "", plain)),
            "responses": {"200": {"description": "The answer.", "content": {"application/json": {"schema": {}}}}},
        }
        if fields is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": fields(server.settings).schema()}}}
            operation["responses"] |= {code: {"description": text} for code, text in _ERRORS.items()}
        if receive is not None:
            operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": UPLOAD}}}
            operation["responses"] |= {code: {"description": text} for code, text in _ERRORS.items()}
        if names := re.findall(r"{(\w+)}", plain):
            operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
            operation["responses"]["404"] = {"description": _ERRORS["404"]}
        paths.setdefault(plain, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "pumice serve", "version": pumice.__version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}] if server.settings.api_keys else [],
    }
