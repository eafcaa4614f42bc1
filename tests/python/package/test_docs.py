"""Everything that the pages of the documentation name must exist: links, files, and the functions, types, constants and tests in
backticks."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest
from paths import ROOT

PAGE_FOLDERS = (".", "bench", "docs", "docs/from", "docs/python", "docs/results", "docs/rooms", "tests")
PAGES = sorted(str(path.relative_to(ROOT)) for folder in PAGE_FOLDERS for path in (ROOT / folder).glob("*.md"))
FOLDERS = ("cpp", "python", "tests", "bench", "cmake", "shaders", "examples", "docs", "packaging", "make", ".ci", ".github")
CODE = ("h", "cpp", "def", "py", "pyi", "glsl", "comp", "cmake", "sh", "S", "txt", "toml", "mk")
# Matches files that pages name by the end of their path, such as `core/ops.h` or `grammar.py`.
NAMED_FILE = re.compile(r"(?<![\w/.<>:@~*-])(?:[\w{},.*-]+/)*[\w{},*-]+\.(?:h|cpp|def|py|pyi|glsl|comp|cmake|sh|md)(?![\w*/(])")
# Names on a page that do not come from this repository.
ELSEWHERE = {
    "CHANGELOG.md": {"DeprecationWarning"},  # of Python
    "SECURITY.md": {"trust_remote_code"},  # of transformers
    "docs/adding.md": {"tensor_mapping.py"},  # of gguf-py
    "docs/rooms/programs.md": {"Route", "ExpertLinear"},  # planned, as the page says
    "docs/python/adapters.md": {"convert_lora_to_gguf.py"},  # of llama.cpp
    "docs/python/threads.md": {"stack_size"},  # of Python's threading
    "docs/serving.md": {
        # figures, whose names are put together; names of nginx, Kubernetes and clients
        "pumice_requests_waiting", "pumice_prompt_tokens_total", "pumice_reused_tokens_total", "pumice_generation_tokens_total",
        "pumice_kv_pages_in_use", "proxy_buffering", "proxy_read_timeout", "terminationGracePeriodSeconds", "base_url", "api_base",
        "api_base_url", "model_name", "from_token", "OpenAILikeEmbedding", "OpenAITextEmbedder",
    },
    "docs/recipes.md": {"service.py"},  # a program of the reader's
    "docs/releasing.md": {"Py_LIMITED_API"},  # of Python
    "docs/scale-out.md": {
        # names of Ray, Dask, Spark and CUDA
        "max_errored_blocks", "write_lance", "take_all", "num_gpus", "get_gpu_ids", "max_ongoing_requests", "partition_size",
        "memoryOverhead", "CUDA_VISIBLE_DEVICES",
    },
    "docs/upstream.md": {"tests/models/*/test_modeling_*.py"},  # of transformers
    "docs/vulkan.md": {
        # names of Vulkan, drivers and containers
        "storageBuffer8BitAccess", "storageBuffer16BitAccess", "shaderInt8", "llvmpipe", "renderD128", "mesa_shader_cache",
        "NVIDIA_DRIVER_CAPABILITIES", "graphics",
    },
}  # fmt: skip
PLACEHOLDER = re.compile(r"NAME|FAMILY|FILE|FOLDER|MODEL|ROOM")
MADE = ("build/", "generated/")  # files that builds and runs make


@lru_cache
def files() -> tuple[str, ...]:
    found = [ROOT / name for name in ("Makefile", "CMakeLists.txt", "pyproject.toml")] + list(ROOT.glob("*.md"))
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return tuple(str(path.relative_to(ROOT)) for path in found)


@lru_cache
def sources() -> dict[str, str]:
    own = str(Path(__file__).relative_to(ROOT))
    code = [name for name in files() if name.rpartition(".")[2] in CODE or name in ("Makefile", "tests/op_cases.json")]
    return {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in code if name != own}


@lru_cache
def words() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", "\n".join(sources().values())))


@lru_cache
def called() -> frozenset[str]:
    """Returns the names that are followed by "(" in the sources, where something is called or defined."""
    return frozenset(re.findall(r"(\w+)\(", "\n".join(sources().values())))


def text_of(page: str) -> str:
    """Returns the text of a page. The first column of tables in docs/from has calls of other packages, and is left out."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.sub(r"^\|[^|\n]*\|", "|", text, flags=re.MULTILINE) if page.startswith("docs/from/") else text


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def pieces(page: str) -> list[str]:
    """Returns the texts between backticks, except those in code blocks."""
    return [" ".join(piece.split()) for piece in re.findall(r"`([^`]+)`", prose(page))]


def alternatives(name: str) -> list[str]:
    """Expands braces: "a.{h,cpp}" gives "a.h" and "a.cpp"."""
    brace = re.search(r"\{([^{}]*)\}", name)
    return [name] if not brace else [a for part in brace[1].split(",") for a in alternatives(name.replace(brace[0], part, 1))]


def found(name: str) -> list[str]:
    """Returns the files that a page may mean by `name`, which is the path, or the end of the path, of a file or a folder. A * matches any
    text without a slash."""
    pattern = re.compile("(?:.*/)?" + re.escape(name).replace(r"\*", "[^/]*") + "(?:/.*)?")
    return [file for file in files() if pattern.fullmatch(file)]


def identifiers(piece: str) -> set[str]:
    """Returns the names in a text that the sources can be searched for: the whole text if it is one name, names that consist of several
    words, and names before "()"."""
    one = re.fullmatch(r"\w*[A-Za-z]\w*", piece)
    return {piece} if one else set(re.findall(r"\b[A-Za-z]\w*_\w+|\b[A-Za-z]+[a-z][A-Z]\w*|\b[A-Za-z_]\w*(?=\(\))", piece))


def is_path(piece: str) -> bool:
    return re.fullmatch(r"[\w./{},*-]+", piece) is not None and (
        piece.startswith(tuple(f"{f}/" for f in FOLDERS)) or bool(NAMED_FILE.fullmatch(piece))
    )


def elsewhere(page: str, name: str) -> bool:
    return name in ELSEWHERE.get(page, set()) or PLACEHOLDER.search(name) is not None or name.startswith(MADE)


def headings(page: Path) -> set[str]:
    """Returns the anchors that GitHub and the documentation's site give to the headings of a page."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        if "://" not in link and (not target.exists() or (anchor and anchor not in headings(target))):
            missing.append(link)
    assert not missing, f"{page} links to {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    without_links = re.sub(r"\]\([^)]*\)|\w+://\S+", "", text_of(page))
    named = set(NAMED_FILE.findall(without_links)) | {word for piece in pieces(page) for word in piece.split() if is_path(word)}
    missing = [name for name in sorted(named) if not elsewhere(page, name) and not all(map(found, alternatives(name.rstrip("/"))))]
    assert not missing, f"{page} names {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_named_code_exists(page: str) -> None:
    missing = []
    for piece in dict.fromkeys(pieces(page)):
        if is_path(piece) or "/" in piece:
            continue
        if re.fullmatch(r"[A-Z]\w+\.[A-Z]\w+", piece):  # a test of GoogleTest (Suite.Name), or a member of a type
            suite, name = piece.split(".")
            known = any(re.search(rf"\({suite}, {name}\)", text) for text in sources().values()) or {suite, name} <= words()
            missing += [] if known else [piece]
            continue
        names = {name for name in identifiers(piece) if not elsewhere(page, name)}
        missing += [name for name in sorted(names) if name not in (called() if re.search(rf"\b{name}\(\)", piece) else words())]
    assert not missing, f"{page} names {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_code_is_in_the_file_that_is_named_with_it(page: str) -> None:
    """If a page names code together with a file, the file must contain the code. The test knows three forms: `name` in `file`; `one` and
    `other` of `file`; `file` (`name`)."""
    text = prose(page)
    some = r"(`[^`]+`(?:(?:,|,? and|,? or)\s+`[^`]+`)*)"
    pairs = [(names, file) for names, file in re.findall(some + r"\)?\s+(?:in|of)\s+`([^`]+)`", text)]
    pairs += [(names, file) for file, names in re.findall(r"`([^`]+)`\s+\(" + some + r"\)", text)]
    missing = []
    for names, file in pairs:
        if not is_path(file) or elsewhere(page, file):
            continue
        there = "\n".join(sources().get(name, "") for alternative in alternatives(file) for name in found(alternative))
        for piece in re.findall(r"`([^`]+)`", names):
            # A test that is named with a file is one that fails without the file's code, so it is in another file.
            if not is_path(piece) and "/" not in piece and not piece.startswith("test_"):
                missing += [
                    f"{name} in {file}" for name in identifiers(piece) if not elsewhere(page, name) and not re.search(rf"\b{name}\b", there)
                ]
    assert not missing, f"{page} names {missing}"


def test_blocks_of_programs_name_what_is_there() -> None:
    """The types, operations and functions in the C++ blocks of docs/rooms/programs.md must exist."""
    page = "docs/rooms/programs.md"
    blocks = "\n".join(re.findall(r"^```cpp\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL))
    names = {
        name
        for name in re.findall(r"\b[A-Za-z]\w*_\w+|\b[A-Z]\w*[a-z]\w*", re.sub(r"//.*|/\*.*?\*/", "", blocks))
        if not elsewhere(page, name)
    }
    assert len(names) > 50
    assert not names - words(), f"{page} names {sorted(names - words())}"
