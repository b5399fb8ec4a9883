"""Give relations to a model of Hugging Face: a :class:`Relation` for each self-attention, and labels for each call.

The model and the models within it get a class of their own, which inherits from theirs. Its ``forward`` takes
``relation_labels=``, makes them :class:`~relgraph.Labels` of the tokens of this call, and hands them on as a keyword
argument, which models of transformers pass down to the attention function.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.interop.transformers import rotary, saved
from relgraph.interop.transformers.batching import ALIGN, check_sizes, labels_of_tokens, repeated
from relgraph.interop.transformers.by_name import NAME, through_interface
from relgraph.interop.transformers.interface import RESTORED_BY, look_after_making, register
from relgraph.interop.transformers.patching import Patched, Report, Unpatched
from relgraph.interop.transformers.relation import LABELS, Relation
from relgraph.interop.transformers.self_attention import head_size_of
from relgraph.interop.transformers.words import cache_of, check_cache, unlabeled
from relgraph.labels import Labels, padded
from relgraph.nn import LabelTable
from relgraph.nn.cache import labels_of_new_rows
from relgraph.nn.tables import check_kinds

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
"""The attributes of a module or its configuration that may hold H."""


def add_relations(
    model: PreTrainedModel,
    labeler: Any,
    tables: Sequence[str] = ("key", "value"),
    per_head: bool = False,
    layers: Sequence[int] | None = None,
) -> Report:
    """Give labels between tokens to a pretrained model of Hugging Face; this changes the model in place.

    Each self-attention gets tables of its own, a :class:`~relgraph.interop.transformers.Relation` as its attribute
    ``relation``. All rows start at zero, so outputs do not change at first. The model then takes labels::

        model(input_ids, attention_mask=mask, relation_labels=labels)

    ``relation_labels`` are :class:`~relgraph.Labels` of all tokens, padding and special tokens included, or what the
    labeler reads, such as a :class:`~relgraph.Graph`. A packed batch of labels is padded on the right.
    :func:`~relgraph.interop.transformers.align` makes labels of tokens from a graph of words. Pairs of tokens that the
    labels do not let attend do not attend: to keep what the model learned, choose a labeler whose other pairs attend,
    such as ``rg.EdgeType(types, attend="all")``; for one whose labels let only pairs with an edge attend, this warns.
    A labeler that reads lengths only needs no ``relation_labels``.

    Where a model has rotary positions, the key table meets the query before its turn, so that its term depends on
    labels only, not on absolute positions. A query table would need keys before their turn, which a cache does not
    hold: such modules get none, nor do those whose turn cannot be undone, as of HunYuan. The report names them.

    With a cache, ``relation_labels`` are those of all tokens so far and perhaps of later ones. ``generate`` takes them,
    up to the last token that it may make; each step cuts its rows. Of an encoder–decoder model the encoder gets
    relations. ``Trainer`` needs :class:`~relgraph.interop.transformers.RelationCollator`. For adapters of PEFT, add
    relations first, and name ``modules_to_save=["relation"]``.

    The configuration of the model then holds the labeler, so other models made with the same object have relations too.
    ``save_pretrained`` writes the tables with the other weights, and the labeler with the configuration. Once this
    module is imported, ``from_pretrained`` of transformers brings both back, unless the labeler is a class of yours:
    then it warns, and :func:`~relgraph.interop.transformers.from_pretrained` takes it.

    Args:
        model: a model whose attention goes through the attention interface of transformers, such as BERT, RoBERTa,
            ESM, ModernBERT, Llama, Qwen or T5. Its ``attn_implementation`` becomes ``"relgraph"``.
        labeler: the labeler of the tables, of any kind.
        tables: which tables there are, of ``"key"``, ``"value"``, ``"query"`` and ``"bias"``.
        per_head: whether each head has its own rows.
        layers: numbers of layers, as in the names of modules; None for all.

    Returns:
        Which attention modules got relations, and which did not and why.

    Raises:
        ValueError: a model that has relations already; a layer that it does not have; unknown tables.
        NotImplementedError: a model without self-attention that goes through the interface, or with unknown arguments.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=2)
        >>> model = BertModel(BertConfig(**sizes)).eval()
        >>> labeler = rg.EdgeType(["child"], attend="all")
        >>> print(rg.interop.transformers.add_relations(model, labeler))
        relations added to: encoder.layer.0-1.attention.self (BertSelfAttention)
        >>> tokens, graph = torch.tensor([[3, 1, 4]]), rg.Graph.from_parents(torch.tensor([-1, 0, 0]))
        >>> model(tokens, relation_labels=graph).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """
    if not isinstance(model, PreTrainedModel):
        hint = ": add relations before the adapters, to the model within" if hasattr(model, "get_base_model") else ""
        raise TypeError(f"model must be a transformers.PreTrainedModel, got {type(model).__name__}{hint}")
    if any(isinstance(module, Relation) for module in model.modules()):
        raise ValueError(
            f"model must have no relations yet, got a {type(model).__name__} with some: if you added none, it was made "
            "with the configuration of a model that has some; use a copy from before add_relations"
        )
    if isinstance(getattr(model.config, "decoder", None), PretrainedConfig):
        raise NotImplementedError(
            f"model must have one configuration for encoder and decoder, got {type(model).__name__} with two: add "
            "relations to model.encoder"
        )
    check_kinds("tables", tables)
    check.boolean("per_head", per_head)
    report = _found(model, layers, tables)
    if not report.patched:
        kinds = sorted({kind for x in model.modules() if "Attention" in (kind := type(x).__name__)})
        raise NotImplementedError(
            f"model must have self-attention that these tables can join: it goes through the attention interface of "
            f"transformers and hands keyword arguments to it, as that of BERT and Llama, got {type(model).__name__} "
            f"with: {str(report) or ', '.join(kinds) or 'no attention'}"
        )
    modules = [model.get_submodule(one.name) for one in report.patched]
    made = [_relation_for(module, labeler, tables, per_head) for module in modules]  # may raise, before any change
    if _lets_only_related_attend(labeler):
        warnings.warn(
            f"outputs change before any training, as {shown(labeler)} lets only pairs with an edge attend: to keep "
            "what the model learned, pass attend='all' to the labeler",
            stacklevel=2,
        )
    register()
    model.set_attn_implementation(NAME)
    for module, relation in zip(modules, made, strict=True):
        relation.attach(module)
    _take_labels(model, labeler)
    numbers = None if layers is None else sorted(set(layers))
    setattr(model.config, saved.ENTRY, saved.entry(labeler, tables, per_head, numbers))
    return report


def from_pretrained(path: Any, *, labeler: Any = None, **options: Any) -> PreTrainedModel:
    """Load a model with relations that ``save_pretrained`` wrote.

    ``from_pretrained`` of transformers does so too, once this module is imported, if the labeler is one of relgraph.
    This function picks the class that was saved, and takes other labelers. Either way ``attn_implementation`` becomes
    ``"relgraph"``, whichever you give: no other reads relations.

    Args:
        path: the folder, or the name of a model on the hub.
        labeler: the labeler of the relations, if it is a class of yours.
        options: further arguments of ``from_pretrained``, such as ``dtype``.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: a model without relations, or without the name of its class; relations of a labeler of yours that
            is not given; a labeler with other labels.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertModel
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1)
        >>> model = BertModel(BertConfig(**sizes))
        >>> _ = rg.interop.transformers.add_relations(model, rg.ClippedDistance(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     model = rg.interop.transformers.from_pretrained(folder)
        >>> model.encoder.layer[0].attention.self.relation.labeler
        ClippedDistance(2)
    """
    register()
    config = options.pop("config", None) or transformers.AutoConfig.from_pretrained(path)
    found = getattr(config, saved.ENTRY, None)
    kind = getattr(transformers, next(iter(config.architectures or ()), ""), None)
    if found is None or kind is None:
        own = next(iter(config.architectures or ()), None) if found is not None else None
        hint = "" if own is None else f": if {own} is a class of yours, call {own}.from_pretrained(path)"
        raise ValueError(
            f"path must hold a model of transformers with relations, got {config.architectures} with {saved.ENTRY} "
            f"{shown(found)}{hint}"
        )
    if labeler is None and saved.labeler_of(found) is None:
        raise ValueError(
            f"labeler must be given: the relations of {path} were made by {found['class']}, not a labeler of relgraph"
        )
    with saved.using(labeler):
        return kind.from_pretrained(path, config=config, **options)


def restore_relations(model: PreTrainedModel) -> None:
    """Add to a model that is being made the relations of its configuration; those of models within it are there."""
    entry = getattr(model.config, saved.ENTRY, None)
    # the decoder of an encoder–decoder is made with a copy of its configuration
    if entry is None or (getattr(model, "is_decoder", False) and getattr(model.config, "is_encoder_decoder", False)):
        return
    labeler = saved.labeler_of(entry)
    if labeler is None:
        saved.warn_of(entry)
        return
    register()
    for one in _found(model, entry["layers"], entry["tables"], strict=False).patched:
        module: Any = model.get_submodule(one.name)
        if getattr(module, "relation", None) is None:
            _relation_for(module, labeler, entry["tables"], entry["per_head"]).attach(module)
        module.config._attn_implementation = model.config._attn_implementation = NAME
    _take_labels(model, labeler)


RESTORED_BY.append(restore_relations)
look_after_making()  # or from_pretrained of transformers would drop the relations of a file


def _lets_only_related_attend(labeler: Any) -> bool:
    """Whether a labeler, or a part of it, lets only pairs with an edge or another relation attend."""
    within = [*getattr(labeler, "parts", ()), getattr(labeler, "labeler", None)]
    return getattr(labeler, "attend", None) in ("edges", "related") or any(
        _lets_only_related_attend(one) for one in within if one is not None
    )


def _found(model: nn.Module, layers: Any, tables: Sequence[str], *, strict: bool = True) -> Report:
    """The attention modules of a model: those that relations are for, and the others with reasons."""
    wanted = (
        None
        if layers is None
        else {check.integer("layers", one, minimum=0) for one in check.items("layers", layers, "numbers")}
    )
    if wanted is not None and not wanted:
        raise ValueError(f"layers must name at least one layer, got {shown(layers)}")
    patched, unpatched, numbers = [], [], set()
    for name, module in model.named_modules():
        kind = type(module).__name__
        own = getattr(type(module), "_relgraph_own", None)
        if own is not None and through_interface(own):
            unpatched.append(Unpatched(name, kind, "it is patched: call unpatch(model) first"))
            continue
        if not through_interface(type(module)):
            continue
        why = _why_not(name, module) or unlabeled(type(module)) or rotary.why_not(module, tables)
        number = next((int(part) for part in name.split(".") if part.isdigit()), 0)
        if why is None:
            numbers.add(number)
            why = None if wanted is None or number in wanted else "its layer is not among layers"
        if why is None:
            patched.append(Patched(name, kind, "relations"))
        else:
            unpatched.append(Unpatched(name, kind, why))
    if strict and wanted is not None and not wanted <= numbers:
        raise ValueError(
            f"layers must be among those with self-attention, {sorted(numbers)}, got {sorted(wanted - numbers)}"
        )
    check_cache(model, [one.name for one in patched])
    return Report(tuple(patched), tuple(unpatched))


def _why_not(name: str, module: Any) -> str | None:
    """Why a module of attention gets no relation; None if it does."""
    if "cross" in f"{name} {type(module).__name__}".lower() or getattr(module, "is_cross_attention", False):
        return "its keys are tokens of another sequence"
    config = getattr(module, "config", None)
    if getattr(module, "is_decoder", False) and getattr(config, "is_encoder_decoder", False):
        return "it is in the decoder: relations are for the encoder of such a model"
    parameters = inspect.signature(inspect.unwrap(type(module).forward)).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        return "its forward takes no keyword arguments, so labels cannot reach the attention"
    if config is None:
        return "it has no configuration"
    return None


def _relation_for(module: Any, labeler: Any, tables: Sequence[str], per_head: bool) -> Relation:
    """A relation with rows of zeros for an attention module, on its device, in its dtype."""
    places = module, getattr(module, "config", None)
    heads = next((getattr(x, name) for x in places for name in HEADS if hasattr(x, name)), None)
    try:
        size = head_size_of(module)
    except StopIteration:
        raise NotImplementedError(f"model must say how large its heads are, got {type(module).__name__}") from None
    relation = Relation(labeler, size, heads, kinds=tables, per_head=per_head)
    like = next((x for x in module.parameters() if x.is_floating_point()), None)
    return relation if like is None else relation.to(like.device, like.dtype)


def _take_labels(model: nn.Module, labeler: Any) -> None:
    """Let a model, and the models within it that have relations, take ``relation_labels``."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and any(isinstance(x, Relation) for x in module.modules()):
            module._relgraph_labeler = labeler
            if not hasattr(type(module), "_relgraph_unrelated"):
                module.__class__ = related_class(type(module))


class RelatedModel:
    """What a model with relations does otherwise: it takes labels, here in ``generate``, and keeps rows at zero."""

    _relgraph_labeler: Any

    def _expand_inputs_for_generation(
        self: Any, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Any = None, **given: Any
    ) -> Any:
        """Labels for each beam; what the labeler reads becomes labels once, not in each step."""
        if given.get(LABELS) is not None:
            given[LABELS] = repeated(_made(self, given[LABELS]), expand_size)
        more = {"expand_size": expand_size, "is_encoder_decoder": is_encoder_decoder, "input_ids": input_ids}
        return super()._expand_inputs_for_generation(**more, **given)  # type: ignore[misc]  # of transformers

    def _init_weights(self: Any, module: nn.Module) -> None:
        """Rows that a checkpoint does not have start at zero."""
        if isinstance(module, LabelTable):
            with torch.no_grad():
                for rows in module.parameters():
                    if not getattr(rows, "_is_hf_initialized", False):  # transformers marks those that it loaded
                        rows.zero_()
        else:
            super()._init_weights(module)  # type: ignore[misc]  # of transformers


@functools.cache
def related_class(own: type) -> type:
    """The class of a model with relations: its own, whose forward takes ``relation_labels`` too."""
    theirs: Any = own
    signature = inspect.signature(theirs.forward)
    named = [one.name for one in signature.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD][1:]

    def forward(self: Any, *args: Any, **given: Any) -> Any:
        labels = given.pop(LABELS, None)
        if labels is not None:
            given[LABELS] = _of_call(self, labels, given | dict(zip(named, args, strict=False)))
        return theirs.forward(self, *args, **given)

    parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    rest = [one for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]
    added = inspect.Parameter(_NoTarget(LABELS), inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any")
    functools.update_wrapper(forward, theirs.forward)
    forward.__signature__ = signature.replace(parameters=[*parameters, added, *rest])  # pyright: ignore[reportFunctionMemberAccess]
    # transformers reads the source of the module of a class, and loads and saves by its name
    more = {"__module__": own.__module__, "__doc__": own.__doc__, "forward": forward, "__reduce_ex__": _reduced}
    return type(own.__name__, (RelatedModel, own), more | {"_relgraph_unrelated": own})


class _NoTarget(str):
    """A name of an argument that Trainer keeps, but does not take for a target of training.

    Trainer drops columns that are not arguments of ``forward``, and takes each with "label" in its name for a target.
    """

    __slots__ = ()

    def __contains__(self, part: str) -> bool:
        return part != "label" and super().__contains__(part)


def _reduced(model: Any, protocol: Any) -> tuple[Any, ...]:
    """How pickle and copy handle a model with relations, whose class has no importable name."""
    _, _, *state = object.__reduce_ex__(model, max(protocol, 2))
    return _empty, (type(model)._relgraph_unrelated,), *state


def _empty(own: type) -> Any:
    kind: Any = related_class(own)
    return kind.__new__(kind)


def _made(model: Any, given: Any) -> Labels:
    """The labels that a model was given, or that its labeler makes of what it was given, of the right labels."""
    labels = given if isinstance(given, Labels) else labels_of_tokens(model._relgraph_labeler, given)
    tables = next(module for module in model.modules() if isinstance(module, Relation)).tables
    if not tables._fits(labels.num_labels):
        raise ValueError(f"{LABELS} must have num_labels {tables.num_labels}, as the tables, got {labels.num_labels}")
    tables._check_names(LABELS, labels)
    return labels


def _of_call(model: Any, given: Any, inputs: dict[str, Any]) -> Labels:
    """The labels of the tokens of a call: all of them, or with a cache the rows of the new ones."""
    labels = _made(model, given)
    tokens = next((inputs[x] for x in ("input_ids", "inputs_embeds") if inputs.get(x) is not None), None)
    if tokens is None:  # a decoder's step, after its encoder ran
        return labels
    length, cache = tokens.shape[1], cache_of(inputs)
    if labels.device not in (None, tokens.device):
        labels = labels.to(tokens.device)
    past = 0 if cache is None or getattr(model.config, "is_encoder_decoder", False) else int(cache.get_seq_length())
    if labels.k_ptr is not None:
        sizes = labels.k_ptr.diff().tolist()
        sizes = sizes * tokens.shape[0] if len(sizes) == 1 else sizes
        if len(sizes) == tokens.shape[0]:
            check_sizes(sizes, inputs.get("attention_mask"), length)
        labels = padded(labels, length)
    if past or model.can_generate():
        labels = labels_of_new_rows(labels, past, length)
    if (labels.q_len, labels.k_len) != (length, past + length):
        so_far, hint = "", f"if these are words, {ALIGN}(encoding, graph)"
        if past:
            so_far, hint = f"{past} of the cache and ", "with a cache give the labels of all tokens up to the last one"
        raise ValueError(
            f"{LABELS} must label all {past + length} tokens, {so_far}{length} of the call, got labels of "
            f"{labels.k_len}: {hint}"
        )
    if labels.batch_size not in (1, tokens.shape[0]):
        raise ValueError(f"{LABELS} must be those of {tokens.shape[0]} texts or of one for all, got {labels!r}")
    return labels
