"""Runs one engine in this process. It loads the engine. Then it measures one piece of work for each line of JSON on stdin, and answers with
one line of JSON.

    python bench/worker.py ENGINE WORK MODEL THREADS FILE FOLDER

ENGINE: pumice, sentence-transformers, transformers, onnxruntime, ctranslate2, llama.cpp, model2vec or plain-read.
WORK: encode (FILE has one text per line); start, which loads the model and encodes FILE's first text, for a fresh process; rank (FILE has
    the query, then the documents); label, static and continue (FILE is as for encode); generate, chat and load (FILE is the tokenizer for a
    model of random weights); read, which uses no model.
FOLDER: the folder of exported models.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Go = dict[str, Any]
Measure = Callable[[Go], dict[str, float]]
Encode = Callable[[list[str], Go], np.ndarray]


# ---------------------------------------------------------------- texts to vectors
def cut(lengths: list[int], go: Go) -> list[list[int]]:
    """Returns batches as lists of indices of texts, from the longest text to the shortest, because padded batches are fastest in this
    order.

    Settings: "batch" is the maximum number of texts in a batch (default: all). "padded" is the maximum number of tokens in a batch whose
    texts are padded to the longest one; a text with more tokens is alone in its batch."""
    most_texts, most_tokens = go.get("batch", len(lengths)), go.get("padded", float("inf"))
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        last = batches[-1] if batches else []
        if last and len(last) < most_texts and (len(last) + 1) * lengths[last[0]] <= most_tokens:
            last.append(place)
        else:
            batches.append([place])
    return batches


def in_batches(batches: list[list[int]], encode: Callable[[list[int]], np.ndarray]) -> np.ndarray:
    """Returns the vectors of all texts in the texts' order. encode() gets the indices of the texts in one batch."""
    vectors = np.concatenate([encode(batch) for batch in batches])
    result = np.empty_like(vectors)
    result[[place for batch in batches for place in batch]] = vectors
    return result


def tokenized(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [tokenizer.encode(texts[0]).ids] if len(texts) == 1 else [e.ids for e in tokenizer.encode_batch(texts)]


def padded(batch: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.zeros((len(batch), len(batch[0])), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return ids, mask


def raw_tokenizer(model: str) -> Any:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.no_padding()
    limits = Path(model) / "sentence_bert_config.json"
    tokenizer.enable_truncation(json.loads(limits.read_text())["max_seq_length"])
    return tokenizer


def pooled(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def encode_pumice(model: str, threads: int) -> Encode:
    import pumice

    @functools.cache
    def loaded(quantize: str | None, compute: str) -> Any:
        return pumice.load(model, device="cpu", threads=threads, quantize=quantize, compute=compute)

    def encode(texts: list[str], go: Go) -> np.ndarray:
        return loaded(go.get("quantize"), go.get("compute", "auto")).encode(texts, show_progress_bar=False)

    return encode


def encode_sentence_transformers(model: str, threads: int) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded = SentenceTransformer(model, device="cpu")

    def encode(texts: list[str], go: Go) -> np.ndarray:
        if "padded" not in go:
            return loaded.encode(texts, batch_size=go.get("batch", len(texts)), show_progress_bar=False)
        lengths = [len(ids) for ids in loaded.tokenizer(texts, truncation=True)["input_ids"]]
        one = lambda batch: loaded.encode([texts[i] for i in batch], batch_size=len(batch), show_progress_bar=False)  # noqa: E731
        return in_batches(cut(lengths, go), one)

    return encode


def onnx_session(file: str, threads: int) -> Callable[[list[list[int]]], tuple[np.ndarray, np.ndarray]]:
    """Returns a function that pads a batch of ids, runs the model, and returns the model's output and the mask of the padding."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(batch: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        tokens, mask = padded(batch)
        given = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        return session.run(None, {each.name: given[each.name] for each in session.get_inputs()})[0], mask

    return run


def encode_onnxruntime(model: str, threads: int) -> Encode:
    tokenizer = raw_tokenizer(model)

    @functools.cache
    def session(name: str) -> Any:
        own = Path(model) / "model.onnx"  # random_encoders.py writes this file; compare.py exports MiniLM to another folder
        return onnx_session(str(own if own.exists() else Path(sys.argv[6]) / name), threads)

    def encode(texts: list[str], go: Go) -> np.ndarray:
        run = session("minilm-int8.onnx" if go.get("int8") else "minilm.onnx")
        ids = tokenized(tokenizer, texts)
        return in_batches(cut([len(each) for each in ids], go), lambda batch: pooled(*run([ids[i] for i in batch])))

    return encode


def encode_ctranslate2(model: str, threads: int) -> Encode:
    import ctranslate2

    tokenizer = raw_tokenizer(model)

    @functools.cache
    def encoder(compute_type: str) -> Any:
        return ctranslate2.Encoder(str(Path(sys.argv[6]) / "minilm-ct2"), device="cpu", intra_threads=threads, compute_type=compute_type)

    def encode(texts: list[str], go: Go) -> np.ndarray:
        forward = encoder("int8" if go.get("int8") else "float32").forward_batch
        vectors = lambda batch: pooled(np.array(forward(batch).last_hidden_state), padded(batch)[1])  # noqa: E731
        ids = tokenized(tokenizer, texts)
        return in_batches(cut([len(each) for each in ids], go), lambda batch: vectors([ids[i] for i in batch]))

    return encode


def encoding(encode: Encode, all_texts: list[str]) -> Measure:
    """Returns a function that measures the sentences/s of encoding all texts in one call.

    Settings: "texts": use only this many texts, the first ones. "call": the number of texts in a call. "calls": measure the milliseconds of
    a call with one text instead, as the median of this many calls. "reference": a file of vectors; the result then also has the lowest
    cosine between a vector and its reference. "save": a file to which the vectors are written."""

    def measure(go: Go) -> dict[str, float]:
        if "calls" in go:
            seconds = []
            for _ in range(go["calls"]):
                begin = time.perf_counter()
                encode(all_texts[:1], go)
                seconds.append(time.perf_counter() - begin)
            return {"ms a call": 1e3 * median(seconds)}
        texts = all_texts[: go.get("texts", len(all_texts))]
        size = go.get("call", len(texts))
        begin = time.perf_counter()
        parts = [encode(texts[at : at + size], go) for at in range(0, len(texts), size)]
        result = {"sentences/s": len(texts) / (time.perf_counter() - begin)}
        vectors = np.concatenate(parts)
        if "save" in go:
            np.save(go["save"], vectors)
        if "reference" in go:
            a, b = vectors.astype(np.float64), np.load(go["reference"]).astype(np.float64)
            result["worst cosine with float32"] = float(((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))).min())
        return result

    return measure


def ranking(score: Callable[[str, list[str]], Any], texts: list[str]) -> Measure:
    """Returns a function that measures the milliseconds of a call that ranks documents. The query is the first text, and the documents are
    the next texts; the setting "documents" is their number."""

    def measure(go: Go) -> dict[str, float]:
        begin = time.perf_counter()
        score(texts[0], texts[1 : go["documents"] + 1])
        return {"ms a call": 1e3 * (time.perf_counter() - begin)}

    return measure


def rank_pumice(model: str, threads: int) -> Measure:
    import pumice

    loaded = pumice.load(model, device="cpu", threads=threads)
    return ranking(lambda query, documents: loaded.rank(query, documents), given_texts())


def rank_sentence_transformers(model: str, threads: int) -> Measure:
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    loaded = sentence_transformers.CrossEncoder(model, device="cpu")
    return ranking(lambda query, documents: loaded.rank(query, documents, show_progress_bar=False), given_texts())


# ---------------------------------------------------------------- labels of tokens
def labelling(label: Callable[[list[str], Go], list[np.ndarray] | None]) -> Measure:
    """Returns a function that measures the sentences/s of labelling all texts in one call.

    label() returns the probabilities of each text's tokens (an array of [tokens, labels]), or None if it made spans of them. "save" and
    "reference" name files of the probabilities of all texts. With "reference" the result has the largest difference."""

    def measure(go: Go) -> dict[str, float]:
        texts = given_texts()[: go["texts"]]
        begin = time.perf_counter()
        found = label(texts, go)
        result = {"sentences/s": len(texts) / (time.perf_counter() - begin)}
        if "save" in go:
            np.save(go["save"], np.concatenate(found))
        if "reference" in go:
            result["largest difference"] = float(np.abs(np.concatenate(found) - np.load(go["reference"])).max())
        return result

    return measure


def label_pumice(model: str, threads: int) -> Measure:
    import pumice

    @functools.cache
    def loaded(compute: str) -> Any:
        return pumice.load(model, device="cpu", threads=threads, compute=compute)

    def label(texts: list[str], go: Go) -> list[np.ndarray] | None:
        how = {"show_progress_bar": False}
        if go["spans"]:
            loaded(go.get("compute", "auto")).label_tokens(texts, aggregation="simple", **how)
            return None
        return [each.probabilities for each in loaded(go.get("compute", "auto")).label_tokens(texts, output="tokens", **how)]

    return labelling(label)


def label_transformers(model: str, threads: int) -> Measure:
    import torch
    import transformers

    torch.set_num_threads(threads)
    loaded = transformers.pipeline("token-classification", model=model, device="cpu", aggregation_strategy="simple")

    def label(texts: list[str], go: Go) -> None:
        # sorted, because the pipeline pads each batch but does not sort
        loaded(sorted(texts, key=len, reverse=True), batch_size=go["batch"])

    return labelling(label)


def label_onnxruntime(model: str, threads: int) -> Measure:
    tokenizer, run = raw_tokenizer(model), onnx_session(str(Path(model) / "model.onnx"), threads)

    def label(texts: list[str], go: Go) -> list[np.ndarray]:
        ids = tokenized(tokenizer, texts)
        found: dict[int, np.ndarray] = {}
        for batch in cut([len(each) for each in ids], go):
            logits = run([ids[i] for i in batch])[0]
            powers = np.exp(logits - logits.max(-1, keepdims=True))
            probabilities = powers / powers.sum(-1, keepdims=True)
            found |= {i: probabilities[row, 1 : len(ids[i]) - 1] for row, i in enumerate(batch)}
        return [found[i] for i in range(len(texts))]

    return labelling(label)


def given_texts() -> list[str]:
    return Path(sys.argv[5]).read_text(encoding="utf-8").splitlines()


# ---------------------------------------------------------------- prompts to tokens
def prompt_ids(vocabulary: int, count: int) -> list[int]:
    """Returns random ids. A list of more ids begins with the same ids."""
    return [int(x) for x in np.random.RandomState(11).randint(1000, min(vocabulary, 40000), count)]


def given_tokenizer(model: str) -> dict[str, Any]:
    """Returns the option tokenizer= for a file of random weights, which has no tokenizer of its own. The tokenizer is MiniLM's, because all
    its ids are in the vocabulary of the file."""
    return {"tokenizer": sys.argv[5]} if Path(model).name.startswith("random-") else {}


def generate_pumice(model: str, threads: int) -> Measure:
    import pumice

    @functools.cache
    def load(n_ctx: int, kv_dtype: str) -> Any:
        return pumice.load(model, device="cpu", threads=threads, n_ctx=n_ctx, kv_dtype=kv_dtype, progress=False, **given_tokenizer(model))

    calls = 0

    def work(go: Go) -> dict[str, float]:
        nonlocal calls
        calls += 1
        loaded = load(go.get("n_ctx", 2048), go.get("kv", "f16"))
        if "describe" in go:
            return described(loaded)
        ids = prompt_ids(loaded.info["vocab_size"], go["prompt"])
        if not go.get("kept"):
            ids[0] = 1000 + calls  # a new first token in each call, so that the prefix cache has no part of the prompt
        prompts = [np.array(ids[i:] + ids[:i], dtype=np.int32) for i in range(go.get("batch", 1))]
        run = greedy(loaded, prompts, go["new"])
        longest = 0.0
        if go.get("steps"):
            run.advance(1, 1e6)  # computes the prompt and the first token
        while not run.done:
            begin = time.perf_counter()
            run.advance(1 if go.get("steps") else 1 << 20, 1e6)
            longest = max(longest, time.perf_counter() - begin)
        t = run.timings()
        run.close()
        return speeds(go, t["prefill_tokens"], t["prefill_seconds"], t["decode_tokens"], t["decode_seconds"], longest)

    return work


def continue_pumice(model: str, threads: int) -> Measure:
    """Returns a function that measures decoding after real texts.

    Settings: "texts": the number of texts, the first ones of the file. "new": the number of tokens after each text. "batch": the number of
    texts that are decoded together. "sampling": parameters of generate(), in place of greedy sampling. The result also has all tokens."""
    import pumice

    loaded, texts = pumice.load(model, device="cpu", threads=threads, progress=False), given_texts()

    def work(go: Go) -> dict[str, Any]:
        count, seconds, tokens = 0, 0.0, []
        sampling = {"temperature": 0.0} | go.get("sampling", {})
        for at in range(0, go["texts"], go["batch"]):
            prompts = texts[at : at + go["batch"]]
            results = loaded.generate(prompts, max_new_tokens=go["new"], ignore_eos=True, seed=at, **sampling)
            count += results[0].timings["decode_tokens"]
            seconds += results[0].timings["decode_seconds"]
            tokens += [[int(token) for token in result.ids] for result in results]
        return {"decode tokens/s": count / seconds, "tokens": tokens}

    return work


def greedy(loaded: Any, prompts: list[Any], new: int) -> Any:
    """Starts a greedy request in the engine itself. No end token ends it."""
    from pumice import _core

    if not hasattr(_core, "GenerateParams"):  # an older version of the package
        return loaded._core.request(prompts, {"max_new_tokens": new, "temperature": 0.0, "eos_ids": []})
    params = _core.GenerateParams()
    params.max_new_tokens = new
    return loaded._core.request(prompts, [params])


def described(loaded: Any) -> dict[str, float]:
    """Returns how much memory is read to decode one token: the bytes of the tensors in the file, and the number of values in the cache per
    position. An embedding that is not also the head does not count, because only one of its rows is read."""
    tensors = loaded._file.tensors
    untied = any(name in ("output.weight", "lm_head.weight") for name, *_ in tensors)
    embedding = ("token_embd.weight", "model.embed_tokens.weight")
    i = loaded.info
    return {
        "weight bytes": sum(bytes_ for name, _, _, bytes_ in tensors if not (untied and name in embedding)),
        "values a position": 2 * i["layers"] * i["kv_heads"] * i["head_dim"],
        "head_dim": i["head_dim"],
    }


def speeds(go: Go, prompt: float, prompt_seconds: float, new: float, new_seconds: float, longest: float) -> dict[str, float]:
    result = {"decode tokens/s": new / new_seconds if new_seconds else 0.0}
    if prompt >= go["prompt"]:  # otherwise a part of the prompt was found in the cache
        result["prefill tokens/s"] = prompt / prompt_seconds
    if go.get("steps"):
        result["longest step, ms"] = 1e3 * longest
    return result


def llama_cpp_model(model: str, threads: int, n_ctx: int, kv: str, flash: bool) -> Any:
    import llama_cpp

    kinds = {"f16": 1, "q8_0": 8}  # GGML_TYPE_F16, GGML_TYPE_Q8_0
    return llama_cpp.Llama(
        model, n_ctx=n_ctx, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False,
        type_k=kinds[kv], type_v=kinds[kv], flash_attn=flash,
    )  # fmt: skip


def generate_llama_cpp(model: str, threads: int) -> Measure:
    load = functools.cache(functools.partial(llama_cpp_model, model, threads))
    held: dict[int, int] = {}  # id() of a loaded model -> number of prompt ids that are in its cache
    batch: LlamaBatch | None = None

    def work(go: Go) -> dict[str, float]:
        loaded = load(go.get("n_ctx", 2048), go.get("kv", "f16"), go.get("flash", False))
        if "batch" in go:
            nonlocal batch
            batch = batch or LlamaBatch(loaded, threads, go["batch"])
            return batch.run(go)
        ids = prompt_ids(loaded.n_vocab(), go["prompt"])
        loaded.reset()
        if go.get("kept"):  # the last token is always computed again, because decoding begins with its logits
            loaded.n_tokens = min(held.get(id(loaded), 0), len(ids) - 1)
        fresh = ids[loaded.n_tokens :]
        begin = time.perf_counter()
        loaded.eval(fresh)
        prefilled = time.perf_counter()
        held[id(loaded)] = len(ids)
        token, longest = ids[-1], 0.0
        for step in range(go["new"]):
            before = time.perf_counter()
            loaded.eval([token])
            longest = max(longest, time.perf_counter() - before)
            token = (token * 7 + step) % 30000 + 100
        return speeds(go, len(fresh), prefilled - begin, go["new"], time.perf_counter() - prefilled, longest)

    return work


class LlamaBatch:
    """Several sequences of one llama.cpp model that are decoded together, through llama.cpp's C interface. Their tokens are taken from a
    counter."""

    def __init__(self, loaded: Any, threads: int, count: int) -> None:
        import llama_cpp

        self._c, self._loaded, self._count = llama_cpp, loaded, count
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 256 * count, 512, 512, count
        params.n_threads, params.n_threads_batch = threads, threads
        self._context = llama_cpp.llama_init_from_model(loaded._model.model, params)
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """Computes the tokens. Each of `tokens` is (id, position, sequence, whether the token's logits are needed)."""
        self._batch.n_tokens = len(tokens)
        for i, (token, at, sequence, logits) in enumerate(tokens):
            self._batch.token[i], self._batch.pos[i], self._batch.logits[i] = token, at, logits
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, sequence
        if self._c.llama_decode(self._context, self._batch) != 0:
            raise RuntimeError("llama_decode failed")

    def run(self, go: Go) -> dict[str, float]:
        prompt, vocabulary = go["prompt"], self._loaded.n_vocab()
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        ids = prompt_ids(vocabulary, prompt)
        begin = time.perf_counter()
        self._decode([(ids[(at + s) % prompt], at, s, at == prompt - 1) for s in range(self._count) for at in range(prompt)])
        prefilled = time.perf_counter()
        for step in range(go["new"]):
            self._decode([(((step * 8 + s) * 7919) % 30000 + 100, prompt + step, s, True) for s in range(self._count)])
        done = time.perf_counter()
        return speeds(go, self._count * prompt, prefilled - begin, self._count * go["new"], done - prefilled, 0.0)


# ---------------------------------------------------------------- chats
def chatting(answers: Callable[[list[list[int]], int, Go], tuple[list[list[int]], float, float]], vocabulary: int) -> Measure:
    """Returns a function that measures the turns of chats. answers(prompts, turn, settings) returns the tokens of each answer, the mean
    number of prompt tokens that were computed, and the mean seconds until the first token. The results are lists with one number for each
    turn. An answer begins with the tokens of its thinking; they are left out of the next prompt."""
    calls = 0

    def measure(go: Go) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        random = np.random.RandomState(calls)
        fresh = lambda count: [int(x) for x in random.randint(1000, min(vocabulary, 30000), count)]  # noqa: E731
        texts = [fresh(go["system"]) for _ in range(go["chats"])]
        seen: dict[str, list[float]] = {"computed": [], "prompt": [], "seconds": []}
        for turn in range(go["turns"]):
            texts = [text + fresh(go["asked"]) for text in texts]
            said, computed, seconds = answers(texts, turn, go)
            seen["computed"].append(computed)
            seen["prompt"].append(len(texts[0]))
            seen["seconds"].append(seconds)
            texts = [text + answer[go["thought"] :] for text, answer in zip(texts, said, strict=True)]
        return seen

    return measure


def chat_pumice(model: str, threads: int) -> Measure:
    import pumice

    loaded = pumice.load(model, device="cpu", threads=threads, n_ctx=4096, kv_budget=2 << 30, progress=False, **given_tokenizer(model))

    def answers(prompts: list[list[int]], turn: int, go: Go) -> tuple[list[list[int]], float, float]:
        length = go["thought"] + go["said"]

        def one(prompt: list[int]) -> tuple[list[int], int, float]:
            begin, first, ids = time.perf_counter(), 0.0, []
            stream = loaded.stream(np.array(prompt, np.int32), max_new_tokens=length, ignore_eos=True, temperature=0)
            for chunk in stream:
                first = first or time.perf_counter() - begin
                ids += [int(x) for x in chunk.ids]
            return ids, len(prompt) - stream.result.reused_tokens, first

        with ThreadPoolExecutor(len(prompts)) as pool:
            each = list(pool.map(one, prompts))
        ids, computed, seconds = zip(*each, strict=True)
        return list(ids), float(np.mean(computed)), float(np.mean(seconds))

    return chatting(answers, loaded.info["vocab_size"])


def chat_llama_cpp(model: str, threads: int) -> Measure:
    import llama_cpp

    loaded = llama_cpp.Llama(model, n_ctx=4096, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    computed = 0
    own = loaded.eval

    def counted(tokens: list[int]) -> None:
        nonlocal computed
        computed += len(tokens)
        own(tokens)

    loaded.eval = counted

    def answers(prompts: list[list[int]], turn: int, go: Go) -> tuple[list[list[int]], float, float]:
        nonlocal computed
        computed, begin, said, read, first = 0, time.perf_counter(), [], 0, 0.0
        for token in loaded.generate(prompts[0], temp=0.0):
            if not said:
                read, first = computed, time.perf_counter() - begin
            said.append(int(token))
            if len(said) == go["thought"] + go["said"]:
                break
        return [said], float(read), first

    return chatting(answers, loaded.n_vocab())


# ---------------------------------------------------------------- loading
def kilobytes(file: str, key: str) -> float:
    return next(float(line.split()[1]) * 1024 for line in Path(file).read_text().splitlines() if line.startswith(key + ":"))


def loading(size: int, prepare: Callable[[Go], Callable[[], Any]], first_token: Callable[[Any], None]) -> Measure:
    """Returns a function that measures three things in a fresh process: the seconds until the model is loaded, the seconds from then to the
    first token, and the memory of the process divided by the size of the file.

    The peak RSS includes pages of a mapped file; anonymous memory does not. "less imports" means that the memory that the process had
    before the load is subtracted."""

    def measure(go: Go) -> dict[str, float]:
        load = prepare(go)
        before = kilobytes("/proc/self/status", "VmRSS")
        begin = time.perf_counter()
        model = load()
        loaded = time.perf_counter()
        first_token(model)
        done = time.perf_counter()
        return {
            "load, s": loaded - begin,
            "first token after load, s": done - loaded,
            "load and first token, s": done - begin,
            "peak RSS / file": kilobytes("/proc/self/status", "VmHWM") / size,
            "peak RSS less imports / file": (kilobytes("/proc/self/status", "VmHWM") - before) / size,
            "anonymous / file": kilobytes("/proc/self/status", "RssAnon") / size,
            "Pss / file": kilobytes("/proc/self/smaps_rollup", "Pss") / size,
        }

    return measure


PROMPT = 20  # number of tokens in the prompt of a test of loading


def load_pumice(model: str, threads: int) -> Measure:
    import pumice

    def prepare(go: Go) -> Callable[[], Any]:
        options: dict[str, Any] = given_tokenizer(model)
        if go.get("tokenizer") == "given" or options:  # imports the package and opens the tokenizer before the clock starts
            import tokenizers

            path = Path(sys.argv[5])
            options["tokenizer"] = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
        return lambda: pumice.load(model, device="cpu", threads=threads, n_ctx=2048, progress=False, **options)

    def first_token(loaded: Any) -> None:
        prompt = np.array(prompt_ids(loaded.info["vocab_size"], PROMPT), dtype=np.int32)
        run = greedy(loaded, [prompt], 1)
        while not run.done:
            run.advance(1, 1e6)

    return loading(Path(model).stat().st_size, prepare, first_token)


def load_llama_cpp(model: str, threads: int) -> Measure:
    import llama_cpp  # noqa: F401  (so that it is imported before the clock starts)

    return loading(
        Path(model).stat().st_size,
        lambda go: lambda: llama_cpp_model(model, threads, 2048, "f16", False),
        lambda loaded: loaded.eval(prompt_ids(loaded.n_vocab(), PROMPT)),
    )


# ---------------------------------------------------------------- memory
def plain_read(_: str, threads: int) -> Measure:
    """Measures a plain read of memory: memchr() of the C library searches zeros for another byte, with the widest loads and no other work.
    The setting "bytes" is the number of zeros."""
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes, memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p

    @functools.cache
    def buffer(count: int) -> tuple[mmap.mmap, int]:
        memory = mmap.mmap(-1, count)
        memory.madvise(mmap.MADV_HUGEPAGE)
        view = np.frombuffer(memory, np.uint8)
        view[:] = 0
        return memory, view.ctypes.data

    def work(go: Go) -> dict[str, float]:
        _, start = buffer(go["bytes"])
        share = go["bytes"] // threads
        passes = 0
        with ThreadPoolExecutor(threads) as pool:
            begin = time.perf_counter()
            while passes < 2 or time.perf_counter() - begin < 0.5:
                list(pool.map(lambda i: memchr(start + i * share, 1, share), range(threads)))
                passes += 1
            return {"GB/s": passes * share * threads / (time.perf_counter() - begin) * 1e-9}

    return work


# ---------------------------------------------------------------- static embeddings
def static_of(load: Callable[[], Any]) -> Measure:
    """Returns a function that measures sentences/s. With the setting "anew", each measurement uses a newly loaded model, whose caches are
    empty."""
    texts, loaded = given_texts(), load()

    def work(go: Go) -> dict[str, float]:
        model = load() if go.get("anew") else loaded
        begin = time.perf_counter()
        model.encode(texts)
        return {"sentences/s": len(texts) / (time.perf_counter() - begin)}

    return work


def static_pumice(model: str, threads: int) -> Measure:
    import pumice

    return static_of(lambda: pumice.load(model, device="cpu", threads=threads))


def static_model2vec(model: str, threads: int) -> Measure:
    import model2vec

    return static_of(lambda: model2vec.StaticModel.from_pretrained(model))


# ---------------------------------------------------------------- which
ENCODERS: dict[str, Callable[[str, int], Encode]] = {
    "pumice": encode_pumice,
    "sentence-transformers": encode_sentence_transformers,
    "onnxruntime": encode_onnxruntime,
    "ctranslate2": encode_ctranslate2,
}
OTHERS: dict[tuple[str, str], Callable[[str, int], Measure]] = {
    ("pumice", "generate"): generate_pumice,
    ("llama.cpp", "generate"): generate_llama_cpp,
    ("pumice", "continue"): continue_pumice,
    ("pumice", "chat"): chat_pumice,
    ("llama.cpp", "chat"): chat_llama_cpp,
    ("pumice", "rank"): rank_pumice,
    ("sentence-transformers", "rank"): rank_sentence_transformers,
    ("pumice", "label"): label_pumice,
    ("transformers", "label"): label_transformers,
    ("onnxruntime", "label"): label_onnxruntime,
    ("pumice", "static"): static_pumice,
    ("model2vec", "static"): static_model2vec,
    ("pumice", "load"): load_pumice,
    ("llama.cpp", "load"): load_llama_cpp,
    ("plain-read", "read"): plain_read,
}


def measure_of(engine: str, work: str, model: str, threads: int) -> Measure:
    if work not in ("encode", "start"):
        return OTHERS[engine, work](model, threads)
    texts = given_texts()
    if work == "encode":
        return encoding(ENCODERS[engine](model, threads), texts)

    def start(go: Go) -> dict[str, float]:
        ENCODERS[engine](model, threads)(texts[:1], go)
        return {}  # measures nothing, because the process that has started this one takes the time

    return start


def main() -> None:
    engine, work, model, threads = sys.argv[1:5]
    answers = sys.stdout
    sys.stdout = sys.stderr  # so that text that an engine prints is not taken for an answer
    measure = measure_of(engine, work, model, int(threads))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
