"""pumice for Arrow tables: callables that add a column of vectors or of generated texts to a pyarrow.Table. Engines that distribute work
over processes and machines can call them. Needs pyarrow: pip install "pumice[arrow]"."""

from __future__ import annotations

try:
    import pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError(f'pumice.arrow needs the package pyarrow: pip install "pumice[arrow]" ({error})', name="pyarrow") from None

from .columns import Encode, Generate

__all__ = ["Encode", "Generate"]
