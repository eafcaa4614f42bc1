"""The server's settings and limits, each with its default and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


def option(default: Any, group: str, about: str) -> Any:
    """Returns a setting that has an option of the same name. group: the option's heading in --help. about: its text in --help."""
    return field(default=default, metadata={"group": group, "about": about})


@dataclass(frozen=True)
class Settings:
    """The settings of app() and `pumice serve`. Sizes are in bytes, times in seconds. `pumice serve --help` and docs/serving.md explain
    them."""

    # ---- access
    # API keys. A request must have one of them, as "Authorization: Bearer KEY" or "x-api-key: KEY". If empty, no key is needed.
    api_keys: tuple[str, ...] = ()
    # Names that the Host header may have, in addition to IP addresses. "*" allows all. Without this check, a page of another site could
    # reach this server under a name of its own that resolves to 127.0.0.1 (DNS rebinding).
    hosts: tuple[str, ...] = ("localhost",)
    # Origins whose pages may call this server from a browser.
    cors_origins: tuple[str, ...] = ()

    # ---- models
    # Other names for models: {"gpt-4o": "chat"}.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # The model that answers requests for names that the server does not have, and those without a name. None: such requests get 404 or 400.
    default_model: str | None = None
    # True loads models when they are first requested, not at the start.
    lazy: bool = False
    # None for idle_unload means never. None for max_loaded means no limit.
    idle_unload: float | None = option(None, "models", "unload a model that was not used for so many seconds")
    max_loaded: int | None = option(None, "models", "most models in memory; where one more is asked for, the longest unused one goes")
    # Keywords of generate() for requests that do not set them.
    sampling: Mapping[str, Any] = field(default_factory=dict)

    # True makes spans of OpenTelemetry for requests. They go to the TracerProvider of the program, or else to the collector that the OTEL_
    # variables of the environment name. Needs the extra [otel].
    otel: bool = False

    # ---- limits of requests
    # True ignores unknown fields of a body and names them in the answer. Otherwise they are an error.
    ignore_unknown_fields: bool = False
    # True lets /v1/embeddings accept token ids. Clients that send ids by default use OpenAI's tokenizer, whose ids mean other tokens here.
    token_inputs: bool = False
    max_headers: int = option(64 << 10, "sizes", "most bytes of a request's headers")
    max_body: int = option(32 << 20, "sizes", "most bytes of a request's body")
    max_bodies: int = option(64 << 20, "sizes", "most bytes of the bodies of all requests that wait or are at work")
    max_inputs: int = option(2048, "sizes", "most texts of /v1/embeddings, and prompts of /v1/completions")
    max_documents: int = option(1024, "sizes", "most documents of /v1/rerank")
    # Without this limit, an answer that its model never ends would fill the context.
    max_answer: int = option(4096, "sizes", "most tokens of an answer whose request does not limit it")
    max_n: int = option(16, "sizes", "most answers to a prompt (n)")
    # Without this limit, a request could have 16,000 sequences, and each of their steps would block the event loop for seconds.
    max_sequences: int = option(512, "sizes", "most prompts of a request times n")
    # An answer that is not streamed keeps all its log-probabilities in memory until it is written, about 160 bytes each.
    max_logprobs: int = option(2 << 20, "sizes", "most log-probabilities of an answer of /v1/completions")
    # Responses of /v1/responses that are kept for previous_response_id. None keeps them in memory.
    responses: str | None = option(None, "sizes", "folder in which responses are kept, instead of in memory; workers share it")
    max_responses: int = option(4096, "sizes", "most responses that are kept; the longest unused ones are forgotten; 0: none")
    max_responses_bytes: int = option(64 << 20, "sizes", "most bytes of the responses that are kept")
    max_stops: int = option(16, "sizes", "most stop texts")
    max_stop_length: int = option(256, "sizes", "most characters of a stop text")
    max_biases: int = option(1024, "sizes", "most entries of logit_bias")
    max_tools: int = option(256, "sizes", "most tools")
    max_schema: int = option(256 << 10, "sizes", "most bytes of a JSON schema, and of each tool")

    # ---- files and batches
    # None: the server keeps no files and takes no batches.
    files: str | None = option(None, "batches", "a folder that keeps the files of clients and the answers to their batches")
    max_file: int = option(256 << 20, "batches", "most bytes of a file")
    max_files: int = option(8 << 30, "batches", "most bytes of all files, those of answers included")
    # More lines would make the steps of requests longer that come from people. The lines have the lowest priority, but an engine that is
    # computing a step does not stop it.
    batch_lines: int = option(32, "batches", "most lines of batches at work")

    # ---- load
    running: int = option(256, "load", "most requests of a model in its batch")
    waiting: int = option(1024, "load", "most requests of a model that wait for a place there; more get 429")
    max_wait: float = option(120.0, "load", "a request that the model has not begun with after so long gets 503")
    connections: int = option(2048, "load", "most connections, those between two requests included")
    header_seconds: float = option(10.0, "load", "how long a client may take for a request's headers")
    body_seconds: float = option(30.0, "load", "how long a client may take for a request's body")
    write_seconds: float = option(60.0, "load", "a client that reads nothing for so long is cut off")
    # Tokens are not sent one by one, because each send takes about 0.13 ms of processor time from the model. 25 sends per second look
    # continuous to people. The first and the last tokens are sent at once.
    chunk_seconds: float = option(0.04, "load", "the tokens of a stream are sent at least so far apart; 0: each by itself")
    # The comments keep proxies from closing a connection on which nothing is sent.
    ping_seconds: float = option(15.0, "load", "a silent stream gets a comment after so long")
    # Longer than the 60 s for which nginx keeps a connection to a server, so that nginx closes the connection first. If this server closed
    # it first, nginx could send a request at the same moment, and this request would be lost.
    keep_alive_seconds: float = option(65.0, "load", "how long a connection without a request is kept")
    grace: float = option(30.0, "load", "how long requests may go on after SIGTERM or Ctrl-C")

    def __post_init__(self) -> None:
        """Checks all values. Raises TypeError and ValueError, which name the setting."""
        from ..common.arguments import check_text, flag, integer, real, shown, unknown_keyword
        from ..generate.settings import SamplingParams, check_setting, check_without_model

        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            if each.type in ("bool", bool):
                flag(name, value)
            elif each.type in ("int", "int | None") and value is not None:
                integer(name, value, 0 if name in ("waiting", "max_responses") else 1)
            elif each.type in ("float", "float | None") and value is not None:
                if name != "chunk_seconds":  # chunk_seconds is a setting of requests, which is checked below
                    real(name, value, 0.0, 1e9, open_low=name != "grace")
            elif name == "responses" and value is not None:
                if not isinstance(value, str) or not value or "\0" in value:
                    raise ValueError(f"responses must be the path of a folder, not {shown(value)}")
            elif each.type == "tuple[str, ...]":
                if isinstance(value, str) or not all(isinstance(one, str) and one.isascii() and one.isprintable() for one in value):
                    # The message does not show the value, because it may be a key.
                    raise TypeError(f"{name} must be a list of texts of printable ASCII characters")
                if "" in value or any(" " in one for one in value):
                    raise ValueError(f"{name} has an empty text, or one with a space, which no header can have")
        # stop_ids is no keyword of generate(), because its `stop` accepts ids, too.
        known = [each.name for each in fields(SamplingParams) if each.name not in ("stop_ids", "max_new_tokens")]
        for name in self.sampling:
            if name == "max_new_tokens":
                raise ValueError("sampling has max_new_tokens: the setting max_answer limits the answers of requests that do not say it")
            if name not in known:
                raise unknown_keyword("sampling", name, known)
        # `sampling`, `chunk_seconds` and `max_answer` are checked here. Otherwise every request would get 400 for a wrong value, which
        # blames the client. Only what depends on the model's own settings or its tokenizer is checked with each request.
        check_without_model(self.sampling)
        check_without_model({"chunk_seconds": self.chunk_seconds})
        check_setting("max_new_tokens", self.max_answer, "max_answer")
        for alias, name in self.aliases.items():
            if not isinstance(alias, str) or not isinstance(name, str):
                raise TypeError(f"aliases must map texts to texts, not {shown(alias)} to {shown(name)}")
            if not check_text(alias, "an alias"):
                raise ValueError(f"an alias of {shown(name)} is empty: it must be a name that requests can give")
