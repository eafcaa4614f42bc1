"""Imports in python/pumice must form no cycle between files or between rooms (its folders). Imports inside functions count, too. Includes
of C++ must go in one direction."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from paths import ROOT

PACKAGE = ROOT / "python" / "pumice"
# A room may import only from the rooms before it in this list. In addition, encode and generate must not import from each other.
ROOMS = ("common", "machine", "tokens", "encode", "generate", "chats", "loading", "gguf", "event_loops", "model", "arrow", "lines", "serve")
FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, dotted name in the package) for each import, except those that are only for type checkers."""

    def walk(node: ast.AST) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.level:
            room = path.relative_to(PACKAGE).parts[:-1]
            base = [*room[: len(room) + 1 - node.level], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                name = ".".join([*base, alias.name])
                yield node.lineno, name if name in FILES else ".".join(base)
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    return walk(ast.parse(path.read_text()))


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """Returns the names on a cycle, which begins and ends with the same name, or [] if there is no cycle."""
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        found = next((f for other in sorted(arrows.get(name, ())) if (f := follow(other, [*way, name]))), [])
        done.add(name)
        return found

    return next((f for name in sorted(arrows) if (f := follow(name, []))), [])


def test_imports_have_no_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    files: dict[str, set[str]] = defaultdict(set)
    for name, path in FILES.items():
        files[name] |= {other for _, other in imports(path) if other in FILES}
    assert sum(map(len, files.values())) > 150  # imports are found
    assert circle(files) == []


def test_rooms_see_those_before_them() -> None:
    wrong = [
        f"{name}.py:{line} imports {other}"
        for name, path in FILES.items()
        for line, other in imports(path)
        if name.split(".")[0] in ROOMS and other.split(".")[0] in ROOMS
        if ROOMS.index(other.split(".")[0]) > ROOMS.index(name.split(".")[0])
        or {name.split(".")[0], other.split(".")[0]} == {"encode", "generate"}
    ]
    assert wrong == []
    assert {path.parent.name for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE} == set(ROOMS)


def test_model_is_its_base_and_calls_by_task() -> None:
    from pumice.model.base import ModelBase
    from pumice.model.model import Model

    assert {base.__bases__ for base in Model.__bases__} == {(ModelBase,)}
    assert ModelBase.__bases__ == (object,)


def test_nothing_lies_beside_the_rooms() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


# For each C++ room, the other rooms whose headers it may include (docs/architecture.md).
INCLUDES = {
    "os": set(),
    "core": set(),
    "quantize": {"core"},
    "files": {"core", "os"},
    "text": {"core"},
    "cpu": {"core", "os"},
    "vulkan": {"core", "files", "os", "shaders"},
    "model": {"core", "files"},
    "engine": {"core", "files", "model", "os", "quantize"},
    "bindings": {"core", "quantize", "files", "text", "model", "engine", "os"},
}
# The files of engine that may include headers of cpu and vulkan. No other file outside these two rooms may do so.
KNOW_BACKENDS = {"devices.cpp", "diagnostics.cpp"}


def test_includes_go_one_way() -> None:
    wrong, found = [], 0
    for room, others in INCLUDES.items():
        folder = ROOT / ("python" if room == "bindings" else "cpp") / room
        for path in sorted(folder.rglob("*")):
            if path.suffix not in (".h", ".cpp"):
                continue
            seen = set(re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE))
            found += len(seen)
            backends = {"cpu", "vulkan"} if room == "engine" and path.name in KNOW_BACKENDS else set()
            wrong += [f"{path.relative_to(ROOT)} includes {other}" for other in sorted(seen - {room, *others, *backends})]
    assert wrong == []
    assert found > 400  # includes are found
    assert set(INCLUDES) - {"bindings"} == {path.name for path in (ROOT / "cpp").iterdir() if path.is_dir()}


# The files that may use what one processor family alone has.
OF_FAMILIES = re.compile(
    r"cpp/cpu/(processor_(x86_64|aarch64)\.cpp|isa/sets\.def|(isa|matrix|rows)/\w*(avx2|avx512|512_native|bf16_512|neon\w*)\.(cpp|h))"
)
WORDS_OF_FAMILIES = {
    "x86-64": r"\w*mmintrin\.h|cpuid\.h|\b_mm\w*_\w+|-mavx\w+|__x86_64__|__SSE\w+",
    "AArch64": r"arm_neon\.h|hwcap\.h|\bHWCAP\w+|\bv\w+_[fsup]\d+\b|-march=armv\w+|__aarch64__|__ARM_\w+",
}


@pytest.mark.parametrize("family", WORDS_OF_FAMILIES)
def test_what_is_of_one_processor_family_lies_apart(family: str) -> None:
    found, seen = [], 0
    for folder in ("cpp", "python/bindings", "cmake"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix not in (".h", ".cpp", ".def", ".cmake", ".txt"):
                continue
            words = re.findall(WORDS_OF_FAMILIES[family], path.read_text())
            apart = OF_FAMILIES.fullmatch(name) is not None
            seen += len(words) if apart else 0
            # processor_other.cpp is for the families without a file of their own, so it names those that have one.
            found += [f"{name}: {word}" for word in words if not apart and name != "cpp/cpu/processor_other.cpp"]
    assert found == []
    assert seen > 100  # such words are found where they may be


# The names of calls, files and macros that only one operating system has.
OF_ONE_SYSTEM = re.compile(
    r"__linux__|__APPLE__|\bO_PATH|\bO_TMPFILE|/proc/|/sys/|RTLD_DEEPBIND|MADV_|\bst_[mc]tim|\bstatx\b|\bfallocate\b|sched_\w+affinity"
    r"|\bgettid\b|pthread_getcpuclockid|pthread_setname_np|std::jthread|\bsysctl\w*|\w+\.so\.\d|\.dylib"
)


def test_what_is_of_one_operating_system_lies_in_one_room() -> None:
    found, seen = [], 0
    for folder in ("cpp", "python/bindings"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix not in (".h", ".cpp", ".S"):
                continue
            code = re.sub(r"//.*", "", path.read_text())
            words = OF_ONE_SYSTEM.findall(code)
            apart = name.startswith("cpp/os/")
            seen += len(words) if apart else 0
            found += [f"{name}: {word}" for word in words if not apart and name != "cpp/vulkan/shaders.S"]  # object formats differ
    assert found == []
    assert seen > 20


def test_each_kernel_file_is_of_a_listed_instruction_set() -> None:
    names = re.findall(r"^PUMICE_ISA\((\w+)", (ROOT / "cpp/cpu/isa/sets.def").read_text(), re.MULTILINE)
    assert names[-1] == "scalar"
    for path in sorted((ROOT / "cpp/cpu/isa").glob("*.cpp")):
        assert any(path.stem.endswith(f"_{name}") for name in names), path.name
