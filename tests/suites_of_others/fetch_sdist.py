"""Downloads the sdist of a package from the index that pip uses, and unpacks it.

`pip download` has the metadata of an sdist built, and for that vLLM wants torch. Here nothing of the sdist runs.

python tests/suites_of_others/fetch_sdist.py vllm==0.33.0 FOLDER   (pip of this Python)"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from pip._internal.commands import create_command


def fetch(pinned: str, folder: Path) -> Path:
    """Returns the unpacked folder of a package such as "vllm==0.33.0"."""
    name, version = pinned.split("==")
    command = create_command("download")
    options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", pinned])
    with command.main_context(), command._build_session(options) as session:  # type: ignore[attr-defined]
        finder = command._build_package_finder(options=options, session=session)  # type: ignore[attr-defined]
        link = next(each.link for each in finder.find_all_candidates(name) if str(each.version) == version)
        folder.mkdir(parents=True, exist_ok=True)
        packed = folder / link.filename
        with session.get(link.url_without_fragment, stream=True) as answer, packed.open("wb") as file:
            answer.raise_for_status()
            for part in answer.iter_content(1 << 20):
                file.write(part)
    if link.hash_name == "sha256" and hashlib.sha256(packed.read_bytes()).hexdigest() != link.hash:
        raise OSError(f"{packed} has another SHA-256 than the index says")
    shutil.unpack_archive(packed, folder)
    packed.unlink()
    return next(path for path in folder.iterdir() if path.is_dir())


if __name__ == "__main__":
    print(fetch(sys.argv[1], Path(sys.argv[2])))
