"""Sphinx: MyST pages, notebooks executed at every build, NumPy docstrings. Needs no network."""

import os
import sys
from pathlib import Path

from tirx_reduce import __version__

project = "tirx-reduce"
copyright = "the tirx-reduce authors; Apache-2.0"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
if tags.has("online"):  # noqa: F821 - Sphinx defines it
    # `sphinx-build -t online`: names of TVM become links; without it no build step leaves this machine.
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "tvm": ("https://tvm.apache.org/docs/", None),
        "numpy": ("https://numpy.org/doc/stable/", None),
    }

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 240
# Pages write files: each in a folder of its own.
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"

napoleon_google_docstring = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

exclude_patterns = ["_build", "**/.jupyter_cache", "_generated"]
html_theme = "furo"
html_title = f"tirx-reduce {__version__}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]

# The cells call `tirx-reduce` and `python` of the environment that builds this, without colours.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for `import console`
os.environ["NO_COLOR"] = "1"
