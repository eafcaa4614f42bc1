"""The installed package: SPIR-V must be inside the compiled module and nowhere else, and no Vulkan loader may be opened before a call needs
a device."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

import pumice
from pumice import _core

PACKAGE = Path(pumice.__file__).parent


def test_no_shader_file_is_installed() -> None:
    files = [file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    page = [file for file in files if file.parent == PACKAGE / "serve" / "page"]
    assert {file.suffix for file in files if file not in page} <= {".py", ".pyi", ".typed", ".so", ".txt"}
    assert {file.suffix for file in page} == {".html", ".css", ".js", ".svg"}  # the page of pumice serve comes with the package


def test_every_shader_is_in_the_module() -> None:
    begin = struct.pack("<II", 0x07230203, 0x00010500)  # SPIR-V's magic number, and version 1.5, which belongs to Vulkan 1.2
    assert Path(_core.__file__).read_bytes().count(begin) == len(list((ROOT / "shaders").glob("*.comp"))) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux alone has")
def test_import_opens_no_vulkan_loader() -> None:
    code = "import pumice; print([line for line in open('/proc/self/maps') if 'libvulkan' in line])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
{first}
code = '''
try:
    import pumice
except ImportError as error:
    print("ImportError", error)
'''
interpreters.run_string(interpreters.create(), code)
"""


@pytest.mark.parametrize("first", ["", "import pumice"])
def test_a_sub_interpreter_is_an_import_error(first: str) -> None:
    """`import pumice` in a sub-interpreter must raise ImportError. It used to wait for ever for the GIL of the main interpreter. From
    Python 3.13 on, Python itself raises the error."""
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER.format(first=first)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match("ImportError .*(sub-interpreter|subinterpreters)", done.stdout), done.stdout


def test_shaders_look_at_the_bits_of_floats() -> None:
    # A driver may assume that all floats are finite, and replace these functions by false (shaders/finite.glsl).
    found = [
        f"{path.name}:{number}"
        for path in sorted((ROOT / "shaders").glob("*.*"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\bis(nan|inf)\(", line.partition("//")[0])
    ]
    assert found == []
