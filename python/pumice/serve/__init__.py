"""A server for models: `pumice serve` on the command line, and app(), whose result any ASGI server can run. Needs the extra [serve]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .application import app
    from .settings import Settings

__all__ = ["Settings", "app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Settings":
        from .settings import Settings

        return Settings
    try:
        from .application import app
    except ImportError as error:
        raise ImportError(f"pumice.serve needs the packages of its extra: pip install 'pumice[serve]' ({error})") from None
    return app
