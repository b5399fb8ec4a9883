"""The forward that attention modules share whose projections have usual names and which have no cache."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from relgraph.interop.transformers.common import compute, split_heads, wants_weights

INPUTS = (
    ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"), ("linear_q", "linear_k", "linear_v"),
)  # fmt: skip
OUTPUTS = ("o_proj", "out_proj", "o", "linear_out", "output")
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_head")


def inputs_of(module: nn.Module) -> tuple[str, str, str]:
    """The names of the projections of queries, keys and values."""
    return next(names for names in INPUTS if names[0] in module._modules)


def output_of(module: nn.Module) -> str | None:
    """The name of the projection of outputs; None if another module does that."""
    return next((name for name in OUTPUTS if name in module._modules), None)


def head_size_of(module: Any) -> int:
    """D, the width of each head."""
    return next(getattr(module, name) for name in HEAD_SIZES if hasattr(module, name))


def dropout_of(module: Any) -> float:
    """The probability with which a module drops attention weights."""
    found: Any = module.attention_dropout if hasattr(module, "attention_dropout") else module.dropout
    return getattr(found, "p", getattr(found, "drop_prob", found))


class SelfAttentionMixin:
    """A forward of self-attention; a family says which labels, mask and tables there are."""

    _relgraph_mixin = True
    _relgraph_words: ClassVar[tuple[str, ...]] = ("attention_mask", "output_attentions")
    """The words of the forwards that it replaces, besides the states."""
    _relgraph_order: ClassVar[tuple[str, ...]]
    """Those of the class that it replaces, in its order; a patched class has it."""

    def forward(self: Any, hidden_states: Tensor, *more: Any, **given: Any) -> tuple[Any, ...]:
        """The output for states ``[B, N, E]``, and the weights ``[B, H, N, N]`` or None; a family may add to them."""
        given |= dict(zip(self._relgraph_order, more, strict=False))
        query, key, value = self._relgraph_heads(hidden_states, given)
        terms = {"mask": given.get("attention_mask")} | self._relgraph_terms(hidden_states, given)
        options = {"labels": None, "dropout": dropout_of(self), "scale": query.shape[-1] ** -0.5} | terms
        output, weights = compute(self, query, key, value, need_weights=self._relgraph_asked(given), **options)
        name = output_of(self)
        return self._relgraph_answer(output if name is None else self._modules[name](output), weights, given)

    def _relgraph_terms(self, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of :func:`compute` that are special: labels and tables, a mask in another form, a scale."""
        raise NotImplementedError

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:  # noqa: ARG002
        """Queries, keys and values ``[B, H, N, D]``."""
        size = head_size_of(self)
        return [split_heads(self._modules[name](states), size) for name in inputs_of(self)]

    def _relgraph_asked(self: Any, given: dict[str, Any]) -> bool:
        """Whether to compute weights."""
        return wants_weights(self, given)

    def _relgraph_answer(self, output: Tensor, weights: Tensor | None, given: dict[str, Any]) -> tuple[Any, ...]:  # noqa: ARG002
        """What the forward returns."""
        return output, weights


class ByArgumentMixin(SelfAttentionMixin):
    """A forward that gives weights only if its own argument asks for them, and otherwise a tuple of one."""

    def _relgraph_asked(self, given: dict[str, Any]) -> bool:
        return bool(given.get("output_attentions"))

    def _relgraph_answer(self, output: Tensor, weights: Tensor | None, given: dict[str, Any]) -> tuple[Any, ...]:  # noqa: ARG002
        return (output,) if weights is None else (output, weights)
