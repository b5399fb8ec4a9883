"""Which words a forward of transformers takes and hands on, and which of them relgraph knows.

Our forwards take ``**given``, so they would swallow a word that transformers renames, and compute without it. Therefore
the words that its classes name are compared with those that are known, once, when a module is looked up.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from transformers import PreTrainedModel

CACHE = ("cache", "past_key_values")
"""The words of a model for the keys and values so far; transformers takes the second until 5.40."""

TAKEN = frozenset((
    "attention_bias", "attention_mask", "attention_scaling", "attention_similarity", "cache", "cache_offset",
    "cache_position", "codebook_idx", "context", "context_hidden_states", "conv_mask", "cu_seqlens", "cycle_offset",
    "encoder_attention_mask", "encoder_hidden_states", "freqs_ci", "head_mask", "height", "hidden_state",
    "hidden_states", "input_features_mask", "k", "key", "key_hidden_states", "key_tensor", "key_value_states",
    "latents", "layer_head_mask", "layer_idx", "layer_past", "mask", "max_seqlen", "merged_attention_mask",
    "num_k_exclude_rope", "output_attentions", "past_key_value", "past_key_values", "position_bias",
    "position_embeddings", "position_ids", "positional_encoding", "prev_topk_indices", "q", "query",
    "query_position_embeddings", "query_tensor", "relative_distance", "relative_position_embeddings", "rotary_pos_emb",
    "shared_kv_states", "use_cache", "v", "value", "value_embeds", "value_hidden_states", "value_tensor", "width",
))  # fmt: skip
"""The words of attention modules that look up their attention function: what they do with them is theirs."""

HANDED = frozenset((
    "attention_mask", "block_indices", "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "dropout",
    "head_mask", "indices", "is_causal", "key", "layer_head_mask", "max_length_k", "max_length_q", "output_attentions",
    "position_bias", "position_ids", "query", "s_aux", "scaling", "sinks", "sliding_window", "softcap", "value",
))  # fmt: skip
"""The words that they name when they call that function: ours reads them, or masks say the same."""


def cache_of(given: dict[str, Any]) -> Any:
    """The cache among the arguments of a call, or None."""
    return next((given[word] for word in CACHE if given.get(word) is not None), None)


def words_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The words that a method names, in order, without ``self``."""
    parameters = [*inspect.signature(function).parameters.values()][1:]
    return tuple(one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))


def unknown_to(mixin: Any, kind: Any) -> str | None:
    """Why the methods of a mixin cannot replace those of a class; None if they know all words of these."""
    for name in (name for cls in mixin.__mro__[:-1] for name in vars(cls) if not name.startswith(("_relgraph", "__"))):
        words = words_of(getattr(mixin, name))
        if words and hasattr(kind, name):  # without words it hands everything on
            known = {*words, *getattr(mixin, "_relgraph_words", ())}
            new = [word for word in words_of(getattr(kind, name)) if word not in known]
            if new:
                return f"{kind.__name__}.{name} takes {', '.join(new)}, which relgraph does not know"
    return None


def unserved(kind: type) -> str | None:
    """Why our attention function cannot serve a class that looks it up; None if it knows all words that it gets."""
    new = sorted(_handed_by(_forward_of(kind)) - HANDED)
    return f"{kind.__name__}.forward hands on {', '.join(new)}, which relgraph does not know" if new else None


def unlabeled(kind: type) -> str | None:
    """Why a class that looks up its attention function gets no labels; None if it takes only words that are known."""
    new = [word for word in words_of(_forward_of(kind)) if word not in TAKEN]
    return f"{kind.__name__}.forward takes {', '.join(new)}, which relgraph does not know" if new else unserved(kind)


def check_cache(model: Any, names: Iterable[str]) -> None:
    """Raise NotImplementedError if a model around attention modules of these names has a cache by an unknown word."""
    for where, module in model.named_modules():
        around = any(f"{name}.".startswith(where and f"{where}.") for name in names)
        # labels are for an encoder, which has no cache
        if not around or not isinstance(module, PreTrainedModel) or getattr(module.config, "is_encoder_decoder", False):
            continue
        words = words_of(_forward_of(type(module)))
        generates = module.can_generate() and "input_ids" in words
        within = any(isinstance(x, PreTrainedModel) and x.can_generate() for x in [*module.modules()][1:])
        if (generates or "use_cache" in words) and not within and "cache" not in words:
            raise NotImplementedError(
                f"model must take its cache as cache, got {type(module).__name__} with "
                f"{', '.join(words)}; add relations to a model within that does"
            )


def _forward_of(kind: type) -> Any:
    """The forward of the nearest class of transformers, which says what callers give; a user's if there is none."""
    found = [cls for cls in kind.__mro__ if "forward" in vars(cls) and not hasattr(cls, "_relgraph_mixin")]
    return vars(next((cls for cls in found if cls.__module__.startswith("transformers.")), found[0]))["forward"]


@functools.lru_cache(maxsize=1024)
def _handed_by(forward: Any) -> frozenset[str]:
    """The words that a forward names in calls with its module first, as of attention functions; none without source."""
    try:
        nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(forward))))
    except OSError:
        return frozenset()
    calls = [one for one in nodes if isinstance(one, ast.Call) and one.args and ast.unparse(one.args[0]) == "self"]
    return frozenset(word.arg for call in calls for word in call.keywords if word.arg)
