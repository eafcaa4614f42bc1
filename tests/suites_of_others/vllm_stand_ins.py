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
import shutil
import signal
import struct
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

    tests_run = False  # whether all test files are imported

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
        if Absent.tests_run:  # a loop over nothing would check nothing, and its test would pass
            raise TypeError("an Absent object has no items")
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


# ---------------------------------------------------------------- the models
# Name of a model of the hub -> which of MODELS stands for it. The first pattern that matches counts; "decoder" stands for all others.
STANDS_FOR = {
    r"apeach|VideoCls": "classifier",
    r"reranker": "reranker",
    r"colbert": "colbert",
    r"bge|e5|embed|minilm|gte|bert": "encoder",
}


def _kind(model: str, arguments: Sequence[str]) -> str:
    found = next((kind for pattern, kind in STANDS_FOR.items() if re.search(pattern, model, re.IGNORECASE)), None)
    return found or ("encoder" if "pooling" in arguments else "decoder")


@cache
def _tensors() -> dict[str, Any]:
    """Returns the tensors of all-MiniLM-L6-v2."""
    from pumice import _core

    file = _core.open_file(str(samples.minilm() / "model.safetensors"))
    return {
        name: np.frombuffer(file.read(name, 0, 4 * int(np.prod(shape))), np.float32).reshape(shape) for name, _, shape, _ in file.tensors
    }


def _written(path: Path, tensors: dict[str, Any]) -> None:
    """Writes a safetensors file."""
    head, end = {}, 0
    tensors = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


@cache
def _model(kind: str) -> Path:
    """Returns the path of a model. The encoder is all-MiniLM-L6-v2, and the decoder SmolLM2. The other encoders have the layers of the
    first with a last matrix of random numbers: they answer in the right form, and their numbers mean nothing."""
    if kind in ("encoder", "decoder"):
        return samples.minilm() if kind == "encoder" else samples.smollm2()
    folder, random = Path(tempfile.mkdtemp()) / kind, np.random.default_rng(1)
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(samples.minilm() / name, folder)
    config = json.loads((samples.minilm() / "config.json").read_text())
    if kind == "colbert":
        tensors = dict(_tensors())
        dense = {"in_features": 384, "out_features": 96, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
        (folder / "1_Dense").mkdir()
        (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
        _written(folder / "1_Dense" / "model.safetensors", {"linear.weight": random.normal(size=(96, 384)) / 20})
        kinds = (("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense"))
        modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds)]
        (folder / "modules.json").write_text(json.dumps(modules))
        about = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", "query_length": 32, "document_length": 300}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    else:
        labels = ["Default", "Spoiled"] if kind == "classifier" else ["LABEL_0"]
        config |= {"architectures": ["BertForSequenceClassification"], "id2label": {str(i): label for i, label in enumerate(labels)}}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
        tensors = {f"bert.{name}": tensor for name, tensor in _tensors().items()}
        if kind == "classifier":  # token ids of the tests, which are of a larger vocabulary, are ids of this model
            words = json.loads((folder / "tokenizer.json").read_text())
            more = range(len(words["model"]["vocab"]), 34000)
            words["model"]["vocab"] |= {f"[more{i}]": i for i in more}
            (folder / "tokenizer.json").write_text(json.dumps(words))
            table = "bert.embeddings.word_embeddings.weight"
            tensors[table] = np.concatenate([tensors[table], random.normal(size=(len(more), 384)) / 20])
            config["vocab_size"] = 34000
        tensors |= {"classifier.weight": random.normal(size=(len(labels), 384)) / 10, "classifier.bias": np.zeros(len(labels))}
    (folder / "config.json").write_text(json.dumps(config))
    _written(folder / "model.safetensors", tensors)
    return folder


@cache
def _adapter() -> Path:
    """Returns the path of an adapter of SmolLM2, a GGUF file. Its numbers are random, and so small that answers still make sense."""
    from pumice.gguf.container import Tensor, head_bytes, padded

    random, width, rank = np.random.default_rng(2), 576, 4
    made = {"a": random.normal(size=(rank, width)) / width, "b": random.normal(size=(width, rank)) / width}
    tensors = [Tensor(f"blk.0.attn_q.weight.lora_{name}", "F32", values.shape) for name, values in made.items()]
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(rank)}
    path = Path(tempfile.mkdtemp()) / "adapter.gguf"
    data = (
        values.astype(np.float32).tobytes().ljust(padded(each.bytes), b"\0") for each, values in zip(tensors, made.values(), strict=True)
    )
    path.write_bytes(head_bytes(keys, tensors) + b"".join(data))
    return path


# ---------------------------------------------------------------- the server
# The template of SmolLM2, and the same as one of a model that reasons. Its reasoning begins in the prompt, as in some of Qwen's templates.
TEMPLATE = (Path(__file__).parent / "small_model.jinja").read_text()
REASONS = TEMPLATE.replace("{%- set reasons = false %}", "{%- set reasons = true %}")
MOST_TOKENS = (512, 8192)  # that the layers of all-MiniLM-L6-v2 and of SmolLM2 take
REASONING_TOKENS = "24"  # in case that SmolLM2 does not end its reasoning by itself


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
    options = ["--port", value_of("--port") or "0", *(f"--alias={each}={names[0]}" for each in names[1:]), "--max-answer", "512"]
    options += ["--temperature", "0"]  # SmolLM2's answers are longer and make less sense otherwise
    options += [f"--api-key={key}" for key in given.get("--api-key", ())]
    if (uds := value_of("--uds")) is not None:
        options[:2] = ["--uds", uds]
    if "--allowed-origins" in given:
        options += [f"--cors-origin={origin}" for origin in json.loads(value_of("--allowed-origins") or "[]")]
    kind = _kind(model, arguments)
    template = value_of("--chat-template")
    if kind != "decoder":
        options.append("--token-inputs")
    if (longest := value_of("--max-model-len") or value_of("--max_model_len")) is not None:
        options += ["--n-ctx", str(min(int(longest), MOST_TOKENS[kind == "decoder"]))]
    if template is None and kind in ("decoder", "classifier"):
        template = TEMPLATE
        if "--reasoning-parser" in given or "gpt-oss" in model:
            template = REASONS
            options += ["--max-reasoning-tokens", REASONING_TOKENS]
    if template is not None:
        if not os.path.exists(template):
            path = Path(tempfile.mkdtemp()) / "template.jinja"
            path.write_text(template)
            template = str(path)
        options += ["--chat-template", template]
    adapted = [each.partition("=")[0] for each in given.get("--lora-modules", ())]
    options += [part for each in adapted for part in ("--load", f"{each}.lora={_adapter()}")]
    return [f"{names[0]}={_model(kind)}", *(f"{each}={_model(kind)}" for each in adapted), *options]


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
def _loaded(kind: str) -> Any:
    import pumice

    return pumice.load(_model(kind))


class Reference:
    """What the tests compute with sentence-transformers and transformers: here, Python's calls of the model that is served."""

    def __init__(self, model_name: str, *_: Any, **__: Any) -> None:
        self._kind = _kind(model_name, ("pooling",))

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode(self, texts: Sequence[str], *_: Any, **__: Any) -> Any:
        return [row.tolist() for row in _loaded(self._kind).encode(list(texts))]

    def predict(self, pairs: Sequence[Sequence[str]], *_: Any, **__: Any) -> Any:
        model = _loaded(self._kind)
        if self._kind == "reranker":
            return model.predict([tuple(pair) for pair in pairs])
        output = "tokens" if self._kind == "colbert" else "sentence"
        first, second = ([pair[i] for pair in pairs] for i in range(2))
        return model.similarity_pairwise(model.encode_query(first, output=output), model.encode_document(second, output=output))


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

        rules = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        rules.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)  # as transformers has it
        template = rules.from_string(chat_template or self.chat_template or "")
        messages = conversation if conversation is not None else variables.pop("messages")
        text = template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables)
        if continue_final_message:
            end = messages[-1]["content"]
            text = text[: text.rindex(end) + len(end)]
        return self.encode(text, add_special_tokens=False) if tokenize else text


@cache
def _tokenizer(kind: str) -> Tokenizer:
    return Tokenizer(_loaded(kind)._tokenizer, TEMPLATE if kind == "decoder" else None)


def get_tokenizer(tokenizer_name: str, *_: Any, **__: Any) -> Tokenizer:
    return _tokenizer(_kind(tokenizer_name, ()))


class ModelConfig:
    """What the tests ask about a model without a server."""

    def __init__(self, model: str, *_: Any, **__: Any) -> None:
        self._kind = _kind(model, ())

    def get_vocab_size(self) -> int:
        return int(_loaded(self._kind).info["vocab_size"])


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


def _softmax(given: Any, dim: int = -1) -> Any:
    powers = np.exp(given - given.max(axis=dim, keepdims=True))
    return powers / powers.sum(axis=dim, keepdims=True)


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
    "tests.entrypoints.pooling.scoring.util": {"EncoderScoringHfRunner": Reference, "ColBERTScoringHfRunner": Reference},
    "torch": {"tensor": np.array, "allclose": np.allclose, "float32": np.float32, "long": np.int64, "iinfo": np.iinfo},
    "torch.nn.functional": {"normalize": _normalize, "softmax": _softmax, "sigmoid": lambda given: 1 / (1 + np.exp(-given))},
    "transformers": {"AutoTokenizer": _AutoTokenizer},
    "vllm.config": {"ModelConfig": ModelConfig},
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
    Absent.tests_run = True
    kept = [item for item in items if _uses_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
