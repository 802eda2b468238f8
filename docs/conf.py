"""The site: `python tools/site.py DIR` copies these pages, adds the reference that it makes of docstrings and `--help`, and runs Sphinx."""

from __future__ import annotations

project = "llmi"
author = copyright = "the llmi developers"
extensions = ["myst_parser"]
root_doc = "docs/index"
exclude_patterns: list[str] = []
myst_heading_anchors = 4  # links to headings are checked, as GitHub names them
html_theme = "alabaster"
html_theme_options = {"description": "tokens are a function of model, prompt, parameters and seed alone", "page_width": "1100px"}
