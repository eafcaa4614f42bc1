"""All errors and warnings of pumice. Their messages say what failed and where, what was found, what was needed, and what to do next."""

from __future__ import annotations

_LONGEST = 4000  # maximum number of characters of a message; a message may quote a text of megabytes from a file


class PumiceError(Exception):
    """The base class of all errors that pumice defines.

    argument: the keyword that the error is about ("temperature", "messages"), or None. The TypeErrors and ValueErrors that methods of a
        Model raise have this attribute, too.

    What to do: docs/python/errors.md#pumiceerror"""

    argument: str | None = None

    def __init__(self, *args: object) -> None:
        # The middle of a long message is cut out, because its end says what to do.
        if args and isinstance(args[0], str) and len(args[0]) > _LONGEST:
            args = (f"{args[0][: _LONGEST - 1000]} ... {args[0][-900:]}", *args[1:])
        super().__init__(*args)


class ModelFormatError(PumiceError, ValueError):
    """The bytes of a model file, or of a file beside it, are not what the file's format requires.

    file: the path of the file, or None.
    field: the key, tensor or part of the file that is wrong, or None.
    offset: the position in the file, in bytes, or None.

    What to do: docs/python/errors.md#modelformaterror"""

    def __init__(self, message: str, *, file: str | None = None, field: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.file = file or None
        self.field = field or None
        self.offset = offset

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        file = self.file if self.file is None or self.file.isprintable() else repr(self.file)
        where = [
            part
            for part, known in (
                (file, file is None or file in message),
                (f"field {self.field}", self.field in message if self.field else True),
                (f"byte {self.offset}", self.offset is None or str(self.offset) in message),
            )
            if not known
        ]
        return f"{message} ({', '.join(map(str, where))})" if where else message


class UnsupportedModelError(PumiceError):
    """The model file is valid, but this version cannot run it, because it has an unknown architecture, weight format or module.

    What to do: docs/python/errors.md#unsupportedmodelerror"""


class TokenizerError(PumiceError):
    """The tokenizer of a model is missing, broken or of an unknown kind. load(tokenizer=) replaces it.

    What to do: docs/python/errors.md#tokenizererror"""


class ChatTemplateError(PumiceError):
    """The model has no chat template, or the template cannot be rendered. load(chat_template=) replaces the template.

    What to do: docs/python/errors.md#chattemplateerror"""


class ContextLengthError(PumiceError, ValueError):
    """A text or prompt has more tokens than the model can take, or than the n_ctx with which it was loaded.

    What to do: docs/python/errors.md#contextlengtherror"""


class GrammarError(PumiceError, ValueError):
    """A grammar or schema cannot be enforced. The message names the position (a JSON pointer or a line), the reason, and what can be
    enforced.

    What to do: docs/python/errors.md#grammarerror"""


class IncompleteCallError(PumiceError, ValueError):
    """The arguments of a tool call were asked for, but the answer ended inside the call (max_new_tokens, the context, or a cancellation).

    What to do: docs/python/errors.md#incompletecallerror"""


class GrammarBusyError(PumiceError):
    """A grammar cannot be compiled now, because earlier grammars that took too long are still being compiled in the background, or because
    the machine is too busy. The grammar itself may be correct. Try again later.

    What to do: docs/python/errors.md#grammarbusyerror"""


class DeviceError(PumiceError):
    """A device failed, or cannot do what it was asked to do.

    What to do: docs/python/errors.md#deviceerror"""


class DeviceNotFoundError(DeviceError):
    """The named device does not exist on this machine. A named device never falls back to another one.

    What to do: docs/python/errors.md#devicenotfounderror"""


class DeviceLostError(DeviceError):
    """The device stopped working during a computation, and its driver has given it up.

    What to do: docs/python/errors.md#devicelosterror"""


class ForkedDeviceError(DeviceError):
    """A device that was opened before a fork(), or a model that was at work in another thread during the fork(), was used in the child
    process.

    What to do: docs/python/errors.md#forkeddeviceerror"""


class OutOfDeviceMemoryError(DeviceError, MemoryError):
    """The device has too little memory for the request.

    What to do: docs/python/errors.md#outofdevicememoryerror"""


class NumericError(PumiceError):
    """A number that must be finite is a NaN or an infinity.

    What to do: docs/python/errors.md#numericerror"""


class OverloadedError(PumiceError):
    """More asynchronous calls wait than the model's limits allow. Try again later. Blocking calls wait for their turn and never raise this
    error.

    What to do: docs/python/errors.md#overloadederror"""


class EventLoopError(PumiceError, RuntimeError):
    """An asynchronous call was made outside of an asyncio event loop (under trio, for example), or a stream was used in another event loop
    than the one in which it began.

    What to do: docs/python/errors.md#eventlooperror"""


class UnsupportedTaskError(PumiceError, TypeError):
    """The model cannot do what was asked, for example generate() on an encoder, or predict() on a model without a classifier head.

    What to do: docs/python/errors.md#unsupportedtaskerror"""


class TruncationWarning(UserWarning):
    """Texts were cut to the model's maximum length. The message says how many texts, and how long the longest one was.

    What to do: docs/python/errors.md#truncationwarning"""


class FallbackWarning(UserWarning):
    """pumice did something other than what was requested. The message tells what was requested, what was done instead, and why.

    What to do: docs/python/errors.md#fallbackwarning"""


class IncompleteModelWarning(UserWarning):
    """Results differ from those of the original model, because the file lacks a part of the model (a dense layer, an end token), or
    because its layers have tensors that pumice does not use. The message names these parts, and what to load instead.

    What to do: docs/python/errors.md#incompletemodelwarning"""


class GrammarWarning(UserWarning):
    """An answer may violate a part of its schema, because relax= allows that, or because a call is forced and no grammar can enforce the
    part in this model's calls. The message names the part.

    What to do: docs/python/errors.md#grammarwarning"""


# Kind of error in the engine (ErrorKind in cpp/core/error.h) -> exception class. "base" is the base class.
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
    "grammar_busy": GrammarBusyError,
    "cancelled": KeyboardInterrupt,
}
