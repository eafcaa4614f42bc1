"""A plugin of pytest for vLLM's own tests of its server. It starts `pumice serve` where they start `vllm serve`.

vLLM and torch are not installed. The modules of them that the tests import are stand-ins: RemoteOpenAIServer, a tokenizer and the
references for vectors are here; everything else is an Absent, with which a test file can be imported, and of which no test can make use.
Only tests that use a server are kept, because all others test vLLM's own parts. The models of the tests are of the hub, which is not
there: encoders are all-MiniLM-L6-v2, all others SmolLM2."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))

import samples  # noqa: E402

# The packages that are stand-ins, and the modules of the tests themselves that need them.
PACKAGES = (
    "vllm", "torch", "transformers", "mteb", "tblib", "PIL", "schemathesis", "hypothesis", "gpt_oss", "openai_harmony", "librosa",
    "soundfile",
)  # fmt: skip
OWN_MODULES = ("tests.conftest", "tests.utils", "tests.models.utils", "tests.models.language", "tests.entrypoints.pooling.scoring.util")
PYTHON = os.environ.get("PUMICE_PYTHON", sys.executable)  # has pumice with its server


# ---------------------------------------------------------------- modules
class Absent:
    """Something of vLLM that is not there. It may be imported, named in annotations, be a base class and decorate."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Absent()

    def __getitem__(self, _: Any) -> Any:
        return Absent()

    def __or__(self, _: Any) -> Any:
        return Absent()

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (Absent,)


class _Module(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins. GIVEN has what is not an Absent in them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in PACKAGES or any(name == each or name.startswith(each + ".") for each in OWN_MODULES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(GIVEN.get(module.__name__, {}))


# ---------------------------------------------------------------- the server
def _is_encoder(model: str, arguments: Sequence[str]) -> bool:
    return "pooling" in arguments or re.search(r"bge|e5|embed|rerank|colbert|minilm|gte|bert", model, re.IGNORECASE) is not None


# What makes the chat template one of a model that reasons. As in Qwen3's, but the reasoning begins in the prompt: SmolLM2 begins none.
REASONS = (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif add_generation_prompt %}<think>\n{% endif %}"
)


def _command(model: str, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of `pumice serve` that mean what those of `vllm serve` mean. What has no counterpart is left out."""
    given: dict[str, list[str]] = {}
    name = ""
    for word in arguments:
        if re.match(r"--?[a-z]", word):
            name, _, value = word.partition("=")
            given.setdefault(name, []).extend([value] if value else [])
        elif name:
            given[name].append(word)

    def value_of(option: str) -> str | None:
        return given[option][0] if given.get(option) else None

    names = given.get("--served-model-name") or [model]
    options = ["--port", value_of("--port") or "0", *(f"--alias={each}={names[0]}" for each in names[1:]), "--max-answer", "256"]
    options += [f"--api-key={key}" for key in given.get("--api-key", ())]
    if (uds := value_of("--uds")) is not None:
        options[:2] = ["--uds", uds]
    if "--allowed-origins" in given:
        options += [f"--cors-origin={origin}" for origin in json.loads(value_of("--allowed-origins") or "[]")]
    if _is_encoder(model, arguments):
        return [f"{names[0]}={samples.minilm()}", "--token-inputs", *options]
    if (longest := value_of("--max-model-len")) is not None:
        options += ["--n-ctx", longest]
    template = value_of("--chat-template") or samples.tools_template().read_text()
    if "--reasoning-parser" in given:
        template += REASONS
    if not os.path.exists(template):
        path = Path(tempfile.mkdtemp()) / "template.jinja"
        path.write_text(template)
        template = str(path)
    return [f"{names[0]}={samples.smollm2()}", "--chat-template", template, *options]


class RemoteOpenAIServer:
    """Starts `pumice serve` for a test, and ends it."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model: str, vllm_serve_args: Sequence[str], *, env_dict: Any = None, **_: Any) -> None:
        self.show_hidden_metrics = False
        command = [PYTHON, "-m", "pumice", "serve", *_command(model, vllm_serve_args)]
        environment = {**os.environ, **({"PUMICE_API_KEY": env_dict["VLLM_API_KEY"]} if "VLLM_API_KEY" in (env_dict or {}) else {})}
        self._log = tempfile.NamedTemporaryFile("w", suffix=".log", delete=False)  # noqa: SIM115
        self.proc = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        assert self.proc.stdout is not None
        said = self.proc.stdout.readline()
        found = re.search(r"http://(\S+):(\d+)", said)
        if not said:
            raise RuntimeError(f"the server did not start: {command}\n{Path(self._log.name).read_text()[-2000:]}")
        self.host, self.port = (found[1], int(found[2])) if found else ("", 0)
        self.uds = None if found else command[command.index("--uds") + 1]

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.proc.send_signal(signal.SIGINT)
        time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            self.proc.send_signal(signal.SIGINT)
        self.proc.wait()
        assert self.proc.stdout is not None
        self.proc.stdout.close()
        self._log.close()

    @property
    def url_root(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        return self.url_root + "/" + "/".join(part.strip("/") for part in parts)

    def _options(self, given: dict[str, Any], path: str) -> dict[str, Any]:
        return {"base_url": self.url_for(path), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 100, **given}

    def get_client(self, **given: Any) -> Any:
        import openai

        return openai.OpenAI(**self._options(given, "v1"))

    def get_async_client(self, **given: Any) -> Any:
        import openai

        return openai.AsyncOpenAI(**self._options(given, "v1"))

    def get_client_anthropic(self, **given: Any) -> Any:
        import anthropic

        return anthropic.Anthropic(**self._options(given, ""))

    def get_async_client_anthropic(self, **given: Any) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(**self._options(given, ""))


# ---------------------------------------------------------------- references
@cache
def _encoder() -> Any:
    import pumice

    return pumice.load(samples.minilm())


class Reference:
    """What the tests compute with sentence-transformers and transformers: here, Python's encode() of the model that is served."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode(self, texts: Sequence[str], *_: Any, **__: Any) -> Any:
        return [row.tolist() for row in _encoder().encode(list(texts))]

    def predict(self, pairs: Sequence[Sequence[str]], *_: Any, **__: Any) -> Any:
        first, second = (_encoder().encode([pair[i] for pair in pairs]) for i in range(2))
        return (first * second).sum(axis=1)


class _Body(dict):  # type: ignore[type-arg]
    """An answer whose entries are attributes, in place of vLLM's own classes of answers."""

    @classmethod
    def model_validate(cls, given: Any) -> Any:
        return cls(given)

    def model_dump(self, exclude: Any = (), **_: Any) -> dict[str, Any]:
        return {name: value for name, value in self.items() if name not in exclude}

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the answer has no {name!r}")
        return _shaped(self[name])


def _shaped(value: Any) -> Any:
    if isinstance(value, dict):
        return _Body(value)
    return [_shaped(each) for each in value] if isinstance(value, list) else value


class Tokenizer:
    """The tokenizer of the model that is served, with the methods of transformers."""

    def __init__(self, tokenizer: Any, template: str | None) -> None:
        self._tokenizer, self.chat_template = tokenizer, template
        special = tokenizer.special
        self.eos_token_id, self.bos_token_id = special.get("eos"), special.get("bos")
        self.eos_token = None if self.eos_token_id is None else tokenizer.token(self.eos_token_id)
        self.vocab_size = tokenizer.vocab_size

    def __len__(self) -> int:
        return int(self.vocab_size)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.backend.encode(text, add_special_tokens=add_special_tokens).ids  # type: ignore[no-any-return]

    def __call__(self, text: Any, add_special_tokens: bool = True, **_: Any) -> Any:
        several = [self.encode(each, add_special_tokens) for each in ([text] if isinstance(text, str) else text)]
        return _Body(input_ids=several[0] if isinstance(text, str) else several)

    def decode(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        return str(self._tokenizer.backend.decode([ids] if isinstance(ids, int) else list(ids), skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: Any, **_: Any) -> Any:
        return self._tokenizer.token(ids) if isinstance(ids, int) else [self._tokenizer.token(i) for i in ids]

    def apply_chat_template(
        self,
        conversation: Any = None,
        tools: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        import jinja2

        template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(chat_template or self.chat_template or "")
        messages = conversation if conversation is not None else variables.pop("messages")
        text = template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables)
        if continue_final_message:
            end = messages[-1]["content"]
            text = text[: text.rindex(end) + len(end)]
        return self.encode(text, add_special_tokens=False) if tokenize else text


@cache
def _tokenizer(encoder: bool) -> Tokenizer:
    import pumice

    if encoder:
        return Tokenizer(_encoder()._tokenizer, None)
    return Tokenizer(pumice.load(samples.smollm2())._tokenizer, samples.tools_template().read_text())


def get_tokenizer(tokenizer_name: str, *_: Any, **__: Any) -> Tokenizer:
    return _tokenizer(_is_encoder(tokenizer_name, ()))


class _AutoTokenizer:
    from_pretrained = staticmethod(get_tokenizer)


def _float_embeddings(response: Any) -> Any:
    return [each.embedding for each in response.data]


def _check_close(*, embeddings_0_lst: Any, embeddings_1_lst: Any, name_0: str = "", name_1: str = "", tol: float = 1e-3) -> None:
    assert len(embeddings_0_lst) == len(embeddings_1_lst)
    for one, other in zip(embeddings_0_lst, embeddings_1_lst, strict=True):
        first, second = np.asarray(one), np.asarray(other)
        likeness = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert likeness >= 1 - tol, f"{name_0} and {name_1} have the cosine {likeness}"


def _correct(model: Any, texts: Sequence[str], outputs: Any, dimensions: int | None = None) -> None:
    _check_close(embeddings_0_lst=[row[:dimensions] for row in model.encode(texts)], embeddings_1_lst=outputs, tol=1e-2)


def _normalize(given: Any, p: int = 2, dim: int = -1) -> Any:
    return given / np.linalg.norm(given, axis=dim, keepdims=True)


_BODIES = (
    "EmbeddingResponse", "PoolingResponse", "ScoreResponse", "RerankResponse", "ClassificationResponse", "TokenizeResponse",
    "DetokenizeResponse", "CohereEmbedResponse",
)  # fmt: skip
# Module -> what it has that is not an Absent.
GIVEN: dict[str, dict[str, Any]] = {
    "tests.utils": {
        "RemoteOpenAIServer": RemoteOpenAIServer,
        "ROCM_EXTRA_ARGS": [],
        "ROCM_ENV_OVERRIDES": {},
        "VLLM_PATH": Path.cwd(),
    },
    "tests.models.utils": {"check_embeddings_close": _check_close},
    "tests.models.language.pooling.embed_utils": {"float_embeddings": _float_embeddings, "run_embedding_correctness_test": _correct},
    "tests.entrypoints.pooling.scoring.util": {"EncoderScoringHfRunner": Reference},
    "torch": {"tensor": np.array, "allclose": np.allclose, "float32": np.float32},
    "torch.nn.functional": {"normalize": _normalize, "sigmoid": lambda given: 1 / (1 + np.exp(-given))},
    "transformers": {"AutoTokenizer": _AutoTokenizer},
    "vllm.tokenizers": {"get_tokenizer": get_tokenizer},
    "vllm.transformers_utils.tokenizer": {"get_tokenizer": get_tokenizer},
    **{
        f"vllm.entrypoints.{where}.protocol": dict.fromkeys(_BODIES, _Body)
        for where in ("pooling.embed", "pooling.pooling", "pooling.scoring", "pooling.classify", "serve.tokenize")
    },
}
sys.meta_path.insert(0, _Finder())


# ---------------------------------------------------------------- pytest
@pytest.fixture(scope="session")
def hf_runner() -> Any:
    return Reference


def _uses_server(item: Any) -> bool:
    """Returns whether a test, or a fixture of it, starts a server."""
    definitions = getattr(item, "_fixtureinfo", None)
    functions = [one.func for each in (definitions.name2fixturedefs if definitions else {}).values() for one in each]
    for function in [item.function, *functions]:
        with contextlib.suppress(OSError, TypeError):
            if re.search(r"RemoteOpenAIServer\(|getfixturevalue\(", inspect.getsource(function)):
                return True
    return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    kept = [item for item in items if _uses_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
