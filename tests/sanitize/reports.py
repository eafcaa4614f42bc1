"""Reads what the sanitizers wrote while Python ran (`make sanitize`), prints the reports of pumice, and fails if there is one.

    python tests/sanitize/reports.py FOLDER PROBE

FOLDER has one file for each process that had reports. PROBE is a text that one of them must have: the Makefile provokes one report, so that
a sanitizer that is off, or that writes elsewhere, is no success.

A report is pumice's if one of its stacks has a frame of the module pumice._core, or if it ended the process. Python and the packages that
it loads are not instrumented: they may leak, and races inside them, of which numpy's OpenBLAS has some, cannot be judged. Their reports are
only counted. A list of suppressions could not separate them: each stack goes through the interpreter, so a
suppression that names the interpreter would hide pumice's reports, too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MODULE = re.compile(r"\b_core\.[\w.-]*so\b")  # as frames name it: (/folder/_core.cpython-311-x86_64-linux-gnu.so+0x1234)
LEAK = re.compile(r"^(?:Direct|Indirect) leak of ", re.MULTILINE)
RACE = re.compile(r"^WARNING: ThreadSanitizer: ", re.MULTILINE)
# glibc frees the thread_local variables of a thread that has ended when it reuses or frees its stack. The lock of its list of stacks is not
# a pthread mutex, so ThreadSanitizer does not see that this comes after all that the thread did.
ENDED_THREAD = re.compile(r"^ +#\d+ (?:__GI_)?_dl_deallocate_tls ", re.MULTILINE)
# What ends a process. "ERROR: LeakSanitizer: detected memory leaks" is only the headline of leaks.
END = re.compile(
    r"ERROR: (?:AddressSanitizer|UndefinedBehaviorSanitizer|ThreadSanitizer)|: runtime error: |Sanitizer: CHECK failed"
    r"|LeakSanitizer has encountered a fatal error"
)


def split(text: str) -> tuple[list[str], list[str]]:
    """Returns the reports in a file's text: those of pumice, and the others."""
    ours: list[str] = []
    others: list[str] = []
    for part in re.split(r"^=+\n", text, flags=re.MULTILINE):
        if END.search(part):
            ours.append(part)
        elif RACE.search(part):
            (ours if MODULE.search(part) and not ENDED_THREAD.search(part) else others).append(part)
        else:
            for stack in filter(LEAK.search, part.split("\n\n")):
                (ours if MODULE.search(stack) else others).append(stack)
    return ours, others


def main(folder: Path, probe: str) -> int:
    texts = [file.read_text(errors="replace") for file in sorted(folder.iterdir())]
    found = [split(text) for text in texts]
    ours = [report for part, _ in found for report in part]
    for report in ours:
        print(report.strip(), end="\n\n")
    print(f"{len(ours)} reports of pumice, {sum(len(part) for _, part in found)} of others, from {len(texts)} processes")
    if not any(probe in text for text in texts):
        print(f"the report that make sanitize provokes ({probe!r}) is not in {folder}: did the sanitizer run?")
        return 1
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
