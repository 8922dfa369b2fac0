"""The documentation site. `make docs` builds it into build/docs; the source folder is the root of the project.

The pages at the root (README, ARCHITECTURE ...) and those of docs/ link each other as files, so every link works on the
site, in an editor and in a code browser alike.
"""

import sys
from pathlib import Path

import hocket

sys.path.insert(0, str(Path(__file__).parent / "site"))  # where the last two extensions are

project = "Hocket"
author = "The Hocket authors"
copyright = f"2026, {author}"
release = version = hocket.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "public_names", "source_pages"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "tests/README.md", "benchmarks/**/README.md"]
exclude_patterns = [".*", "build", "dist", "src"]

myst_heading_anchors = 4
autodoc_preserve_defaults = True
smartquotes = False
add_module_names = False

html_theme = "furo"
html_title = f"Hocket {release}"
html_static_path = ["site/static"]
html_css_files = ["hocket.css"]
templates_path = ["site/templates"]
html_additional_pages = {"index": "redirect.html"}  # build/docs/index.html leads to the start page
html_copy_source = False
html_show_sphinx = False
