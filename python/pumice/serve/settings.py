"""The server's settings and limits, each with its default and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What app() and `pumice serve` may be told. Sizes are in bytes, times in seconds."""

    # ---- who may ask
    # Keys of which a request must carry one, as "Authorization: Bearer KEY" or "x-api-key: KEY". Empty: none is needed.
    api_keys: tuple[str, ...] = ()
    # Names that the Host header may have, beside IP addresses; "*" allows all. A page of another site could otherwise reach this server
    # under a name of its own that resolves to 127.0.0.1 (DNS rebinding).
    hosts: tuple[str, ...] = ("localhost",)
    # Origins whose pages may call this server from a browser.
    cors_origins: tuple[str, ...] = ()

    # ---- models
    # Other names of models: {"gpt-4o": "chat"}.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # True: models are loaded when they are first asked for, not at the start.
    lazy: bool = False
    # A model that no request has used for this long is unloaded. None: never.
    idle_unload: float | None = None
    # Most models in memory. Where one more is asked for, that which was unused for longest is unloaded. None: all.
    max_loaded: int | None = None
    # Sampling for requests that do not set it: keywords of generate().
    sampling: Mapping[str, Any] = field(default_factory=dict)

    # ---- what requests may have
    # Unknown fields of a body are ignored, and named in the answer, where they would be an error.
    ignore_unknown_fields: bool = False
    # /v1/embeddings takes token ids. Clients that send them by default send those of OpenAI's tokenizer, whose meaning here is another.
    token_inputs: bool = False
    # Most bytes of a request's headers.
    max_headers: int = 64 << 10
    max_body: int = 32 << 20
    # Most bytes of bodies that are waiting or at work, of all requests together.
    max_bodies: int = 64 << 20
    max_inputs: int = 2048
    max_documents: int = 1024
    max_n: int = 16
    # Most answers of a request: prompts of /v1/completions times n. One step of 16,000 sequences would hold the event loop for seconds.
    max_sequences: int = 512
    max_stops: int = 16
    max_stop_length: int = 256
    max_biases: int = 1024
    max_tools: int = 256
    max_schema: int = 256 << 10

    # ---- load
    # Most requests of a model that take part in steps, and most that wait for that.
    running: int = 256
    waiting: int = 1024
    # A request that the model has not begun with after this long is answered with 503.
    max_wait: float = 120.0
    # Most connections, those between two requests included.
    connections: int = 2048
    # How long a client may take for the headers of a request, and for its body.
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    # A client that takes nothing for this long is cut off.
    write_seconds: float = 60.0
    # The tokens of a stream are sent at least this far apart, but for its first and its last ones. A send takes some 0.13 ms of a processor
    # from the model, and people do not see 25 a second as steps. 0: each token by itself.
    chunk_seconds: float = 0.04
    # A stream without events gets a comment after this long, so that no proxy takes the connection for dead.
    ping_seconds: float = 15.0
    # A connection without a request is kept for this long. More than the 60 s of nginx: who closes first must be the one that sends next.
    keep_alive_seconds: float = 65.0
    # How long requests may go on once the server is told to stop.
    grace: float = 30.0

    def __post_init__(self) -> None:
        """Checks all values. Raises TypeError and ValueError, which name the setting."""
        from ..common.arguments import flag, integer, real, shown, unknown_keyword
        from ..generate.settings import SamplingParams

        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            if each.type in ("bool", bool):
                flag(name, value)
            elif each.type in ("int", "int | None") and value is not None:
                integer(name, value, 0 if name == "waiting" else 1)
            elif each.type in ("float", "float | None") and value is not None:
                real(name, value, 0.0, 1e9, open_low=name not in ("grace", "chunk_seconds"))
            elif each.type == "tuple[str, ...]":
                if isinstance(value, str) or not all(isinstance(one, str) and one.isascii() and one.isprintable() for one in value):
                    # The value is not shown, because it may be a key.
                    raise TypeError(f"{name} must be a list of texts of printable ASCII characters")
                if "" in value or any(" " in one for one in value):
                    raise ValueError(f"{name} has an empty text, or one with a space, which no header can have")
        known = [each.name for each in fields(SamplingParams)]
        for name in self.sampling:
            if name not in known:
                raise unknown_keyword("sampling", name, known)
        for alias, name in self.aliases.items():
            if not isinstance(alias, str) or not isinstance(name, str):
                raise TypeError(f"aliases must map texts to texts, not {shown(alias)} to {shown(name)}")
