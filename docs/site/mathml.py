"""Renders formulas as MathML, which browsers draw themselves: no script, no font, no other server."""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.logging import getLogger


def setup(app: Any) -> dict[str, Any]:
    """Register ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_formula(node, as_block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula" tabindex="0">{_formula(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _formula(node: nodes.Element, *, as_block: bool) -> str:
    """Render the formula; if docutils cannot read it, show its source and warn, which fails the build."""
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        getLogger(__name__).warning("%s in the formula %s", error, node.astext(), location=node)
        return f"<code>{escape(node.astext())}</code>"
