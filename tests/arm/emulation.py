"""How programs for 64-bit ARM run on this machine: in a user namespace of their own, in which Linux gives them to the emulator.

Since Linux 6.7 a user namespace has registrations of its own (binfmt_misc). So programs may start further programs, nothing is changed
outside, and it needs no rights.
"""

from __future__ import annotations

EMULATOR = "/usr/bin/qemu-aarch64-static"
PROCESSOR = "max,sve=off,sme=off"  # qemu's processor with all extensions, without those that pumice does not use

_PROGRAMS = (
    r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00",
    r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe" + r"\xff" * 3,
)  # the first bytes of ARM's programs, and a mask of those that must be so
_BINFMT = "/proc/sys/fs/binfmt_misc"
_REGISTER = f"mount -t binfmt_misc none {_BINFMT} && printf %s ':arm:M::{':'.join(_PROGRAMS)}:{EMULATOR}:F' > {_BINFMT}/register"


def emulated(command: list[str], variables: dict[str, str], before: tuple[str, ...] = ()) -> list[str]:
    """Returns the command line that runs `command` with these environment variables. `before`: shell commands that run first, in the same
    namespace, where mounts are seen by nothing else."""
    script = " &&\n".join([_REGISTER, *before, 'exec env "$@"'])
    settings = [f"{name}={value}" for name, value in variables.items()]
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *settings, *command]
