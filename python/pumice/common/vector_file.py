"""The .npy file that `pumice encode` writes."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from .stdio import OutputError, is_output, takes_bytes

if TYPE_CHECKING:
    from .. import _core


class VectorFile:
    """The .npy file that `pumice encode` writes. It is opened before the texts are encoded. A regular file appears at its path only when it
    is complete. If the path is a pipe, a terminal, /dev/null or standard output, the bytes are written directly to it.

    np.save() is not used, because it would add .npy to the name, and would fail on a pipe, which has no position."""

    def __init__(self, path: str) -> None:
        from .. import _core

        self._path, self.is_output = path, is_output(path)
        self._file: _core.NewFile | BinaryIO
        with self._errors():
            if self.is_output:
                self._file = sys.stdout.buffer
            else:
                self._file = open(path, "wb") if takes_bytes(path) else _core.NewFile(path)  # noqa: SIM115

    def save(self, vectors: Any) -> None:
        """Writes the array and closes the file. Raises OSError with the file's path, or OutputError if the reader of a pipe has exited."""
        import numpy as np

        from .. import _core

        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vectors))
        with self._errors():
            if isinstance(self._file, _core.NewFile):
                self._file.write(0, header.getvalue())
                self._file.write(header.tell(), vectors.data)
                self._file.finish()
            else:
                self._file.write(header.getvalue())
                self._file.write(vectors.data)
                self._file.flush()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            raise OutputError(error) from None
        except OSError as error:
            # The error is raised unchanged if it has no system message (no errno), or if its message already names the file.
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(f"cannot write {self._path}: {error.strerror}") from None
