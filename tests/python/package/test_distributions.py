"""What a release is made of: pyproject.toml, the workflow and docs/platforms.md must name the same platforms, the workflow must
publish nothing that was not tested, and packaging/distributions.py must find what is wrong with an sdist or a wheel."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT

import pumice
from pumice import _core

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

sys.path.append(str(ROOT / "packaging"))
import distributions  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEELS = PROJECT["tool"]["cibuildwheel"]
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
JOBS: dict[str, Any] = yaml.safe_load(WORKFLOW)["jobs"]


def steps(job: str) -> list[str]:
    """Returns the commands and actions of a job of the workflow, in their order."""
    return [step.get("run") or step["uses"].partition("@")[0] for step in JOBS[job]["steps"]]


def test_workflow_has_the_platforms_of_pyproject() -> None:
    wanted = sorted((system, arch) for system in ("linux", "macos") for arch in WHEELS[system]["archs"])
    for job in ("wheels", "test"):
        platforms = JOBS[job]["strategy"]["matrix"]["platform"]
        assert sorted((platform["system"], platform["arch"]) for platform in platforms) == wanted, job
        for platform in platforms:  # each platform has a machine of its own kind, because cibuildwheel does not cross-compile for Linux
            arm = platform["arch"] in ("aarch64", "arm64")
            assert platform["runner"].startswith("ubuntu" if platform["system"] == "linux" else "macos")
            assert arm == (platform["runner"].endswith("-arm") or re.fullmatch(r"macos-\d+", platform["runner"]) is not None)
    assert JOBS["test"]["strategy"]["matrix"]["platform"] == JOBS["wheels"]["strategy"]["matrix"]["platform"]


def test_workflow_tests_the_versions_of_python_that_have_wheels() -> None:
    versions = [re.sub(r"^cp3(\d+)-\*$", r"3.\1", pattern) for pattern in WHEELS["build"].split()]
    assert JOBS["test"]["strategy"]["matrix"]["python"] == versions
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_platforms_page_has_the_wheels_of_pyproject() -> None:
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|([^|]*)\|([^|]*)\|", page.partition("## What each is worth\n")[2].partition("\n\n")[0], re.MULTILINE)
    found = {wheel.strip(): platform.strip() for platform, wheel in rows[2:]}  # below the heading and its rule
    assert [wheel for wheel in found if wheel] == distributions.platforms(WHEELS)
    for wheel, platform in found.items():
        assert not wheel or wheel.startswith("macosx" if platform.startswith("macOS") else "manylinux"), platform


def test_workflow_publishes_only_what_every_job_before_let_pass() -> None:
    publish = JOBS["publish"]
    assert set(publish["needs"]) == set(JOBS) - {"publish"}
    assert publish["if"] == "github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"
    assert publish["permissions"]["id-token"] == "write"
    assert [job for job in JOBS if "permissions" in JOBS[job]] == ["publish"]  # no other job may publish
    assert "secrets." not in WORKFLOW
    assert "continue-on-error" not in WORKFLOW
    assert "always()" not in WORKFLOW
    done = steps("publish")
    assert [name for name in done if "publish" in name] == [done[-1]] == ["pypa/gh-action-pypi-publish"]
    assert 'python packaging/distributions.py --release "${GITHUB_REF_NAME#v}" dist/*' in done
    assert "make test-wheel PYTHON=python" in steps("test")


def test_actions_are_pinned() -> None:
    """A tag of an action can be moved to other code. A commit cannot."""
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert len(used) > 10
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def test_version_is_that_of_the_installed_package() -> None:
    installed = [path.name for path in Path(_core.__file__).parents[1].glob("pumice-*.dist-info")]
    # A module that CMake alone built, which PYTHONPATH names, belongs to no package.
    assert installed == ([] if pumice.__version__ == "0+cmake" else [f"pumice-{pumice.__version__}.dist-info"])
    assert pumice.build_info()["version"] == pumice.__version__


def test_version_without_tags_is_the_next_of_the_changelog() -> None:
    after = re.findall(r"^## (\S+), not released yet$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [f"{version}.dev0" for version in after] == [PROJECT["tool"]["setuptools_scm"]["fallback_version"]]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)


def version_of(folder: Path) -> str:
    """Returns the version that a build in this folder gets."""
    command = [sys.executable, "-W", "ignore", "-m", "setuptools_scm"]  # a shallow clone is a warning
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120).stdout.strip()


def test_versions_with_and_without_tags(tmp_path: Path) -> None:
    """Every checkout has a version that pip accepts: builds must not need a tag, the whole history, or git. docs/releasing.md has the
    table."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    fallback = PROJECT["tool"]["setuptools_scm"]["fallback_version"]
    assert version_of(folder) == fallback  # without git
    git(folder, "init", "-q")
    git(folder, "add", ".")
    for message in ("one", "two"):
        git(folder, "commit", "-q", "--allow-empty", "-m", message)
    first = re.escape(fallback.removesuffix("0"))
    assert re.fullmatch(first + r"2\+g[0-9a-f]+", version_of(folder))  # without tags
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "shallow")
    assert re.fullmatch(first + r"1\+g[0-9a-f]+", version_of(tmp_path / "shallow"))
    git(folder, "tag", "v0.3.0")
    assert version_of(folder) == "0.3.0"
    git(folder, "commit", "-q", "--allow-empty", "-m", "three")
    assert re.fullmatch(r"0\.3\.1\.dev1\+g[0-9a-f]+", version_of(folder))
    git(folder, "tag", "v0.4.0rc1")
    assert version_of(folder) == "0.4.0rc1"


SOUND_SDIST = {
    "CMakeLists.txt": b"",
    "LICENSE": b"",
    "PKG-INFO": b"Name: pumice\nVersion: 1.2.3\n",
    "README.md": b"",
    "pyproject.toml": b"",
    "shaders/add.comp": b"",
    "generated/shaders/add.spv": b"",
    "generated/shaders/sources.sha256": b"",
}


def sdist(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "pumice-1.2.3.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"pumice-1.2.3/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_a_sound_sdist_passes(tmp_path: Path) -> None:
    assert distributions.sdist_faults(sdist(tmp_path, SOUND_SDIST)) == []


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("LICENSE", None, "lacks LICENSE"),
        ("PKG-INFO", b"Name: pumice\nVersion: 1.2.4\n", "is of version 1.2.4, which its name does not say"),
        ("generated/shaders/add.spv", None, "has shaders/add.comp and not its SPIR-V, or the other way round"),
        ("generated/shaders/old.spv", b"", "has shaders/old.comp and not its SPIR-V, or the other way round"),
        ("examples/tiny.gguf", b"GGUF", "has examples/tiny.gguf, which does not belong in an sdist"),
        ("tests/python/conftest.py", b"", "has tests/python/conftest.py, which does not belong in an sdist"),
        (".github/workflows/release.yml", b"", "has .github/workflows/release.yml, which does not belong in an sdist"),
        ("docs/large.svg", bytes(500_001), "has docs/large.svg of 500,001 bytes, and at most 500,000 are allowed"),
    ],
)
def test_faults_of_an_sdist_are_found(tmp_path: Path, name: str, content: bytes | None, fault: str) -> None:
    files = {**SOUND_SDIST, name: content}
    assert distributions.sdist_faults(sdist(tmp_path, {n: c for n, c in files.items() if c is not None})) == [fault]


def wheel(folder: Path, changes: dict[str, bytes | None]) -> Path:
    module = distributions.SPIRV * len(list((ROOT / "shaders").glob("*.comp")))
    files = {
        "pumice/_core.cpython-311-x86_64-linux-gnu.so": module,
        "pumice/libpumiceopenblas.so": b"",
        "pumice/libpumiceopenblas.LICENSE.txt": b"",
        "pumice-1.2.3.dist-info/METADATA": b"Name: pumice\nVersion: 1.2.3\n",
        "pumice-1.2.3.dist-info/licenses/LICENSE": b"",
        **changes,
    }
    path = folder / "pumice-1.2.3-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def test_a_sound_wheel_passes(tmp_path: Path) -> None:
    assert distributions.wheel_faults(wheel(tmp_path, {})) == []
    without_openblas: dict[str, bytes | None] = {"pumice/libpumiceopenblas.so": None, "pumice/libpumiceopenblas.LICENSE.txt": None}
    assert distributions.wheel_faults(wheel(tmp_path, without_openblas)) == []


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("pumice/_core.cpython-311-x86_64-linux-gnu.so", None, "has 0 compiled modules pumice/_core"),
        ("pumice/_core.cpython-311-x86_64-linux-gnu.so", b"\x7fELF", "was built without Vulkan"),
        ("pumice-1.2.3.dist-info/METADATA", b"Name: pumice\nVersion: 1.2.4\n", "is of version 1.2.4"),
        ("pumice-1.2.3.dist-info/licenses/LICENSE", None, "lacks the licence"),
        ("pumice/libpumiceopenblas.LICENSE.txt", None, "has OpenBLAS without its licence"),
        ("pumice.libs/libstdc++-0a1b.so.6", b"", "has pumice.libs/libstdc++-0a1b.so.6: the module was linked"),
        ("pumice/tiny.safetensors", b"", "has pumice/tiny.safetensors"),
        ("pumice/padding.txt", bytes(15_000_000), "and at most 15,000,000 are allowed"),
    ],
)
def test_faults_of_a_wheel_are_found(tmp_path: Path, name: str, content: bytes | None, fault: str) -> None:
    found = distributions.wheel_faults(wheel(tmp_path, {name: content}))
    assert len(found) == 1 and fault in found[0], found


def release() -> list[str]:
    """Returns the names of the files of release 1.2.3, with the additional tags that auditwheel gives to wheels for Linux."""
    pythons = [pattern.removesuffix("-*") for pattern in WHEELS["build"].split()]
    tags = [tag.replace("manylinux_2_28_", "manylinux_2_27_x86_64.manylinux_2_28_") for tag in distributions.platforms(WHEELS)]
    return ["pumice-1.2.3.tar.gz"] + [f"pumice-1.2.3-{python}-{python}-{tag}.whl" for python in pythons for tag in tags]


def test_a_release_is_complete_or_refused() -> None:
    whole = release()
    assert len(whole) == 1 + 5 * 4
    assert distributions.release_faults(whole, "1.2.3", WHEELS) == []
    for name in whole:
        assert len(distributions.release_faults([n for n in whole if n != name], "1.2.3", WHEELS)) == 1, name
    other = "pumice-1.2.3-cp311-cp311-linux_x86_64.whl"
    assert distributions.release_faults([*whole, other], "1.2.3", WHEELS) == [f"{other} does not belong to release 1.2.3"]
    assert len(distributions.release_faults(whole, "1.2.4", WHEELS)) == 2 * len(whole)  # each is missing, and each does not belong
