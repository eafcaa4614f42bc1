"""The compiled module must import no function that ends the process: an assertion that fails, abort(), exit(). std::terminate() is among
its imports, because the compiler puts a call into each noexcept function."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from pumice import _core

ENDING = {
    "abort", "exit", "_exit", "_Exit", "quick_exit", "raise", "pthread_exit", "pthread_kill",
    "__assert_fail", "__assert", "__assert_rtn", "__chk_fail",
    "__fortify_fail", "longjmp", "_longjmp", "siglongjmp", "__longjmp_chk", "verror_at_line", "err", "errx", "error",
}  # fmt: skip


def imports(path: str) -> set[str]:
    nm = shutil.which("nm")
    if nm is None or not sys.platform.startswith("linux"):
        pytest.skip("not run: asks nm for the symbols of an ELF file")
    found = subprocess.run([nm, "-D", "--undefined-only", path], capture_output=True, text=True, check=True).stdout
    return {re.sub(r"@.*", "", line.split()[-1]) for line in found.splitlines()}


def test_nothing_in_the_module_ends_the_process() -> None:
    found = imports(_core.__file__)
    assert {"memcpy", "_Znwm", "pread64"} & found, "nm shows other names than expected"
    assert sorted(found & ENDING) == []
    assert [name for name in found if "__glibcxx_assert_fail" in name] == []
