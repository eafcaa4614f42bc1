"""Shows pumice on real models: searches docstrings by meaning, streams an answer, and prints on which devices the models run. `make demo`
runs it."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import re
import sys
import time
import warnings

import samples

import pumice


def docstrings(count: int) -> dict[str, str]:
    """Returns sentences from the docstrings of Python itself, each with the name that it describes. They are real English, which every
    machine has."""
    texts: dict[str, str] = {}
    skip = {"antigravity", "this", "idlelib", "test", "lib2to3", "turtledemo", "__main__"}
    names = sorted({module.name for module in pkgutil.iter_modules() if not module.name.startswith("_")} - skip)
    standard = [name for name in names if name in sys.stdlib_module_names]
    for name in [*standard, "numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.ma", "tqdm", "jinja2"]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except Exception:  # the module does not exist on this platform
            continue
        for path, thing in [(name, module), *((f"{name}.{k}", v) for k, v in vars(module).items())]:
            members = [(path, thing)]
            if inspect.isclass(thing):
                members += [(f"{path}.{k}", v) for k, v in vars(thing).items()]
            for place, member in members:
                doc = getattr(member, "__doc__", None)
                if not isinstance(doc, str):
                    continue
                if doc is type(member).__doc__:  # a plain value has no docstring but that of its type
                    place = f"{type(member).__module__}.{type(member).__qualname__}"
                for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])|\n\s*\n", doc):
                    sentence = " ".join(sentence.split())
                    if 20 <= len(sentence) <= 400:
                        texts.setdefault(sentence, place)
        if len(texts) >= count:
            break
    return dict(itertools.islice(texts.items(), count))


def main() -> None:
    begin = time.perf_counter()
    print(pumice.devices())
    print()

    encoder = pumice.load(samples.minilm())
    print(encoder.summary())
    texts = list(docstrings(10_000))
    started = time.perf_counter()
    vectors = encoder.encode(texts, show_progress_bar=True)
    seconds = time.perf_counter() - started
    print(f"\n{len(texts):,} sentences to {vectors.shape[1]} numbers each in {seconds:.1f} s: {len(texts) / seconds:.0f} sentences/s\n")
    for query in ("how far is a number from zero", "wait until another thread has finished", "pack files into a compressed archive"):
        scores = encoder.similarity(encoder.encode_query(query), vectors)[0]
        print(f"? {query}")
        for i in scores.argsort()[::-1][:3]:
            print(f"  {scores[i]:.3f}  {texts[i][:110]}")
    print()

    for name, path, chat in (("SmolLM2 135M", samples.smollm2(), True), ("Gemma 3 270M", samples.gemma3(), False)):
        decoder = pumice.load(path)
        print(decoder.summary())
        print()
        if chat:
            print("you> Why does pumice float on water?\n" + f"{name}> ", end="")
            stream = decoder.chat(
                [{"role": "user", "content": "Why does pumice float on water?"}], stream=True, max_new_tokens=120, temperature=0
            )
        else:
            print(f"{name}> Pumice is a volcanic rock that", end="")
            stream = decoder.stream("Pumice is a volcanic rock that", max_new_tokens=60, temperature=0)
        for chunk in stream:
            print(chunk.text, end="", flush=True)
        timings = stream.result.timings
        print(
            f"\n\nprefill {timings['prefill_tokens_per_second']:.0f} tokens/s, decode {timings['decode_tokens_per_second']:.0f} tokens/s\n"
        )
        memory = decoder.memory()
        print("memory: " + ", ".join(f"{key} {value / 2**20:.0f} MiB" for key, value in memory.items()) + "\n")
        decoder.close()
    encoder.close()
    print(f"all in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
