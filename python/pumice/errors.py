"""Every error and warning of pumice. Messages say what, where, found and needed, and what to do next."""

from __future__ import annotations

_LONGEST = 4000  # maximum length of a message in characters, because a text from a file may have megabytes


class PumiceError(Exception):
    """The base of every error that is pumice's own."""

    def __init__(self, *args: object) -> None:
        if args and isinstance(args[0], str) and len(args[0]) > _LONGEST:  # keeps the message's end, which says what to do
            args = (f"{args[0][: _LONGEST - 1000]} ... {args[0][-900:]}", *args[1:])
        super().__init__(*args)


class ModelFormatError(PumiceError, ValueError):
    """The bytes of a model file (or a file beside it) are not what its format asks for.

    `file`, `field` and `offset` (in bytes) say where. Each is None if it does not apply.
    """

    def __init__(self, message: str, *, file: str | None = None, field: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.file = file or None
        self.field = field or None
        self.offset = offset

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        where = [
            part
            for part, known in (
                (self.file, self.file in message if self.file else True),
                (f"field {self.field}", self.field in message if self.field else True),
                (f"byte {self.offset}", self.offset is None or str(self.offset) in message),
            )
            if not known
        ]
        return f"{message} ({', '.join(map(str, where))})" if where else message


class UnsupportedModelError(PumiceError):
    """A sound file that this version cannot run: an architecture, a weight format or a module it does not know."""


class TokenizerError(PumiceError):
    """The tokenizer of a model is missing, broken or of an unknown kind. load(tokenizer=) replaces it."""


class ChatTemplateError(PumiceError):
    """A model without a chat template, or a template that does not render. load(chat_template=) replaces it."""


class ContextLengthError(PumiceError, ValueError):
    """More tokens than the model, or the context that it was loaded with, can take."""


class GrammarError(PumiceError, ValueError):
    """A grammar or schema that cannot be enforced. The message has the place (a JSON pointer or a line), the reason, and what can be
    enforced."""


class DeviceError(PumiceError):
    """A device failed, or cannot do what was asked."""


class DeviceNotFoundError(DeviceError):
    """The device that was asked for does not exist here. A named device never falls back to another one."""


class DeviceLostError(DeviceError):
    """The driver gave up the device while it worked."""


class ForkedDeviceError(DeviceError):
    """A device that was opened before fork() was used in the child."""


class OutOfDeviceMemoryError(DeviceError, MemoryError):
    """The device's memory does not hold what was asked for."""


class NumericError(PumiceError):
    """A NaN or an infinity where a number belongs."""


class OverloadedError(PumiceError):
    """More async calls wait than the model's limits allow: try again later. Calls that block wait for their turn, and never raise it."""


class EventLoopError(PumiceError, RuntimeError):
    """An async call was made outside of an asyncio event loop (under trio, say), or a stream was read in another loop than it began in."""


class UnsupportedTaskError(PumiceError, TypeError):
    """The model cannot do this: generate() on an encoder, predict() on a model without a classifier head."""


class TruncationWarning(UserWarning):
    """Texts were cut to the model's length. The message has their number and the longest length."""


class FallbackWarning(UserWarning):
    """Something else was done than what was asked for. The message says what was asked, what was done and why."""


class IncompleteModelWarning(UserWarning):
    """The file lacks a part of the model (a dense layer, an end token), or its layers have tensors that are not run, so that results differ
    from the original's. The message names them, and what to load instead."""


class GrammarWarning(UserWarning):
    """An answer may violate a part of its schema, because relax= allows that. The message names the part."""


# Classes for the kinds of the engine's errors (ErrorKind in cpp/core/error.h).
BY_KIND: dict[str, type[BaseException]] = {
    "base": PumiceError,
    "invalid_argument": ValueError,
    "wrong_type": TypeError,
    "io": OSError,
    "model_format": ModelFormatError,
    "unsupported_model": UnsupportedModelError,
    "context_length": ContextLengthError,
    "unsupported_task": UnsupportedTaskError,
    "out_of_memory": MemoryError,
    "device": DeviceError,
    "device_not_found": DeviceNotFoundError,
    "device_lost": DeviceLostError,
    "forked_device": ForkedDeviceError,
    "out_of_device_memory": OutOfDeviceMemoryError,
    "overloaded": OverloadedError,
    "numeric": NumericError,
    "grammar": GrammarError,
    "cancelled": KeyboardInterrupt,
}
