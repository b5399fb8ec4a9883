"""How Sphinx builds the site; ``python -m docs.site`` runs it."""

from __future__ import annotations

import gc
import sys
import warnings
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import matplotlib as mpl

mpl.use("Agg")

from sphinx.search.en import SearchEnglish

import relgraph as rg
from docs.site import inventories
from docs.site.autodoc import LESS_COMMON
from docs.site.gallery import EXAMPLES, helpers

gc.set_threshold(100_000, 50, 50)  # a build makes millions of nodes that stay: to look through them often takes seconds
if tags.has("quick"):  # noqa: F821  # Sphinx gives this file its tags
    gc.disable()  # without examples all pages fit into memory, and to look through them even seldom takes two seconds
SearchEnglish.stem = cache(SearchEnglish.stem)  # each page has the same words again

project = "relgraph"
author = "the relgraph authors"
copyright = "2026, the relgraph authors"
version = release = rg.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "docs.site.autodoc",
    "docs.site.gallery",
    "docs.site.mathml",
    "docs.site.sidebar",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "decisions",
    "images/**/tables.md",
    "gallery/GALLERY_HEADER.rst",
    "**/README.md",
    "sg_execution_times.rst",
]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore = [  # described with the report that holds them
    ("py:class", "relgraph.interop.transformers.patching.Patched"),
    ("py:class", "relgraph.interop.transformers.patching.Unpatched"),
    ("py:class", "relgraph.functional.region.Arguments"),  # what regions and functions hand to each other
    # the inventory of torch that is kept here lacks these
    ("py:class", "torch.distributed.device_mesh.DeviceMesh"),
    ("py:class", "torch.distributed.tensor.parallel.style.ParallelStyle"),
    ("py:class", "torch.distributed.tensor.placement_types.Placement"),
    ("py:mod", "torch.distributed.tensor.parallel"),
]
show_warning_types = True
smartquotes = False  # pages have the characters that they mean, and the pass takes a second or two
highlight_language = "text"  # of `::` blocks; Python is marked as such
suppress_warnings = [
    "config.cache",  # the gallery's functions are no plain values, so that Sphinx cannot keep them
    "sphinx_gallery.duplicate_filename",  # an experiment has the name of its page, and is no page
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Shapes", "params_style"), (LESS_COMMON, "params_style")]

intersphinx_mapping = inventories.written(HERE / "_build" / "inventories")
intersphinx_timeout = 0.001  # inventories lie beside the pages: nothing is fetched

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/(?!with_)[a-z_]+\.py$",  # those that begin with "with_" are shown, and run as tests
    "ignore_pattern": helpers(),
    "reference_url": {},
    "capture_repr": (),  # a page prints what it says; the repr of a picture is noise
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "remove_config_comments": True,
    "download_all_examples": False,
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "copyfile_regex": r"^$",
    "thumbnail_size": (800, 560),  # of cards that show a picture of their page
    "min_reported_time": 1,
}
warnings.filterwarnings("error", module="relgraph")

WIDE = [
    "learn/labelers",
    "benchmarks",
    "gallery/index",
    *(f"gallery/{path.stem}" for path in EXAMPLES.glob("*.py")),
    *(f"coming-from/{path.stem}" for path in HERE.glob("coming-from/*.md")),
]
html_theme = "pydata_sphinx_theme"
html_title = "relgraph"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["relgraph.css"]
html_show_sourcelink = False
html_sidebars = {page: [] for page in ("index", "install", "tutorial")}
html_sidebars["api/**"] = ["sidebar-collapse", "sidebar-api"]
html_favicon = "_static/relgraph.svg"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {
        "text": f"relgraph {version}",
        "image_light": "_static/relgraph.svg",
        "image_dark": "_static/relgraph.svg",
    },
    "header_links_before_dropdown": 9,  # all
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"]} | {page: [] for page in WIDE},
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
