"""How Sphinx builds the site (`make docs`). Links, anchors and references are checked; each warning is an error."""

from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

import precede

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "precede"
version = release = precede.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["pictures/*.py"]
root_doc = "index"

# Markdown: headings of four levels have anchors, so that a link to a section can be checked.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Docstrings: a word between single backticks is code. Of the types in signatures only the public ones have a page.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!precede\.[A-Z]\w*$).*")]

# The site needs nothing from another site: no fonts, scripts or pictures.
html_theme = "furo"
html_title = f"precede {release}"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def setup(app: "Sphinx") -> None:
    app.add_lexer("story", TextLexer)  # the stories on the pages of the orders, which tests run
