"""The site: ``make docs`` builds it into ``build/site``. Sphinx reads the Markdown
where it lies.
"""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "lab"), str(HERE)]
# The kernels of the notebooks find the package too, and share the cores with the build.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT), str(ROOT / "lab"), os.environ.get("PYTHONPATH")])
)

project = "torchcaps"
author = "The torchcaps authors"
project_copyright = author
version = release = re.findall(
    r'__version__ = "(.*)"', (ROOT / "torchcaps" / "__init__.py").read_text()
)[0]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # MathJax comes with the site
    "sphinx_copybutton",
    "reference",
    "linked",
]

root_doc = "docs/site/index"
include_patterns = ["docs/**", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
# Hidden files and folders; "." itself is none, and static files are looked up as
# "./site.css".
exclude_patterns = [
    ".?*",
    ".?*/**",
    "build",
    "runs",
    "**/__pycache__",
    "**/.ipynb_checkpoints",
]

# Markdown
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Notebooks are executed by the build; those that have not changed are taken from the
# cache.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 600

# Docstrings
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shape"]
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# Every reference must lead somewhere; types of other packages have no page here.
nitpicky = True

html_theme = "furo"
html_title = f"torchcaps {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]
html_copy_source = False
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"

CHAPTERS = {"docs/guide/README": "[01]*", "docs/results/README": "recipes/README"}
"""Pages that stand above others, which GitHub shows without a contents list."""


def add_contents(app, docname, source):
    """Puts the pages below a page into the contents."""
    if docname in CHAPTERS:
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n{CHAPTERS[docname]}\n```\n"


def setup(app):
    """Connects the above."""
    app.connect("source-read", add_contents)
