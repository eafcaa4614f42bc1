"""The settings of the documentation's site (`make docs`), which is made from the same Markdown files that the repository shows.

Sphinx, and not MkDocs, for three reasons: its search works in files that are opened from a disk, without a server or a plugin; it makes the
reference by importing the package, so that signatures are those which a caller sees; and with -W a link that leads nowhere ends the build.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # docstrings.py
sys.path.append(os.environ["PUMICE_FROM"])  # the folder in which the package is installed, with what it needs

project = "pumice"
html_title = "pumice"
copyright = "the authors of pumice, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings"]

# ---------------------------------------------------------------- pages
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**", "bench/README.md", "tests/README.md"]
exclude_patterns = ["docs/requirements.txt", "docs/site", "build", "dist", ".*", "**/.*"]

# The navigation: the caption of a group, and its pages in order. A page that is in no group fails the build.
NAVIGATION = {
    "Tasks": [
        "docs/tour", "docs/python/load", "docs/sizes", "docs/python/encode", "docs/python/sparse", "docs/python/rank", "docs/python/labels",
        "docs/python/generate", "docs/python/structured", "docs/python/tools", "docs/python/event-loops", "docs/python/threads",
        "docs/python/arrow", "docs/python/gguf",
        "docs/python/command-line", "docs/serving", "docs/batches", "docs/scale-out",
    ],
    "Recipes": ["docs/recipes"],
    "Coming from": ["docs/from/sentence-transformers", "docs/from/llama-cpp-python", "docs/from/ollama-openai"],
    "Details": [
        "docs/python/files", "docs/python/adapters", "docs/python/guesses", "docs/python/prefixes", "docs/python/inside",
        "docs/python/tokens", "docs/python/model", "docs/python/plan", "docs/python/notebooks", "docs/python/environment", "docs/vulkan",
    ],
    "Look up": [
        "docs/python", "docs/models", "docs/limits", "docs/python/errors", "docs/reference/functions",
        "docs/reference/model", "docs/reference/results",
        "docs/reference/errors",
    ],
    "Evidence": [
        "docs/performance", "docs/numerics", "docs/reliability", "docs/families", "docs/formats", "docs/mixes", "docs/upstream",
        "docs/clients",
        "docs/platforms", "docs/results/epyc-zen3", "docs/results/epyc-zen4", "docs/results/amd-epyc-avx512-bf16", "docs/results/xeon-amx",
        "docs/results/xeon-sapphire-rapids",
    ],
    "Developers": [
        "docs/architecture", "docs/rooms/programs", "docs/rooms/model", "docs/rooms/engine", "docs/rooms/backends", "docs/rooms/python",
        "docs/rooms/decisions", "docs/rooms/words", "docs/adding", "tests/README", "bench/README",
        "CONTRIBUTING", "docs/releasing", "SECURITY", "CHANGELOG",
    ],
}  # fmt: skip


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def add_index(app: Any, failure: Exception | None) -> None:
    """Writes index.html, which leads to the first page: that one has the name of its file, README."""
    if failure is None:
        (Path(app.outdir) / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n')


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
    return {"parallel_read_safe": True}


# ---------------------------------------------------------------- Markdown
smartquotes = False  # quotation marks are those of code
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4  # links to #a-heading work as they do in the repository
myst_enable_extensions = ["deflist"]

# ---------------------------------------------------------------- reference
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["pyarrow"]  # pumice.arrow imports it; .venv has it only after make test
add_module_names = False
python_maximum_signature_line_length = 100

# ---------------------------------------------------------------- looks
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "default"
