"""Real text for tests: the translations that ship with Django, in about ninety languages and many scripts. The test requirements pin the
version of Django."""

from __future__ import annotations

import importlib.util
import random
import re
from pathlib import Path

DJANGO = "5.2.8"


def _translations() -> dict[str, list[str]]:
    spec = importlib.util.find_spec("django")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the test requirement Django=={DJANGO} is not installed: run `make test`")
    root = Path(spec.origin).parent
    version = re.search(r"VERSION = \((\d+), (\d+), (\d+)", (root / "__init__.py").read_text(encoding="utf-8"))
    if version is None or ".".join(version.groups()) != DJANGO:
        raise FileNotFoundError(
            f"the goldens were made from the translations of Django {DJANGO}, found {version and version.groups()}: run `make test`"
        )
    texts: dict[str, list[str]] = {}
    for file in sorted(root.glob("**/locale/*/LC_MESSAGES/*.po")):
        language = file.parts[file.parts.index("locale") + 1]
        for kind, body in re.findall(r'^(msgid|msgstr(?:\[\d\])?) ((?:"(?:[^"\\]|\\.)*"\s*)+)', file.read_text(encoding="utf-8"), re.M):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', body)).replace('\\"', '"').replace("\\n", "\n").replace("\\t", "\t").strip()
            if not text or "Content-Type:" in text:
                continue
            texts.setdefault("en" if kind == "msgid" else language, []).append(text)
    return {language: list(dict.fromkeys(lines)) for language, lines in texts.items()}


def sentences(count: int = 2000) -> list[str]:
    """Returns `count` texts of 1 to 600 words. Two thirds are single entries of the translations, and the others are runs of neighbouring
    entries."""
    rng = random.Random(20260)  # Python's documentation promises the same sequence in every version
    texts = _translations()
    languages = sorted(texts)
    out: list[str] = []
    while len(out) < count:
        lines = texts["en"] if rng.random() < 0.3 else texts[rng.choice(languages)]
        start = rng.randrange(len(lines))
        if rng.random() < 2 / 3:
            out.append(lines[start])
            continue
        words = int(10 ** (rng.random() * 1.78 + 1))  # from 10 to 600, uniform in the logarithm
        text = ""
        while len(text.split()) < words and start < len(lines):
            text, start = f"{text} {lines[start]}".strip(), start + 1
        out.append(text)
    return out
