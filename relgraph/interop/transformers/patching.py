"""Find the attention modules of a model, give each a class that computes by relgraph, and restore its own class.

A patched module is the same object with the same parameters, submodules and hooks. Its class is a new one, which
inherits from its own and takes only ``forward`` from the mixin of its family. So names, state dicts, checkpoints and
``isinstance`` do not change, adapters that wrap projections work, and a deep copy is patched too.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.impl import IMPLEMENTATIONS
from relgraph.interop.transformers import by_name
from relgraph.interop.transformers.common import IMPL
from relgraph.interop.transformers.families import ALL, REFUSED, Family, all_families, bases_of, kind_of, nearest
from relgraph.interop.transformers.words import unknown_to, words_of


@dataclass(frozen=True)
class Patched:
    """A module that relgraph computes; see :class:`Report`."""

    name: str
    kind: str
    family: str


@dataclass(frozen=True)
class Unpatched:
    """An attention module that stays unpatched; see :class:`Report`."""

    name: str
    kind: str
    why: str


@dataclass(frozen=True)
class Report:
    """The result of :func:`~relgraph.interop.transformers.patch`; it prints one line for all layers that are alike.

    Args:
        patched: the modules that relgraph computes now, each with ``name``, ``kind`` (its class) and ``family``.
        unpatched: the attention modules that stay unpatched, each with ``name``, ``kind`` and ``why``.

    Example:
        >>> from transformers import LongT5Config, LongT5ForConditionalGeneration
        >>> sizes = dict(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_decoder_layers=1, num_heads=2)
        >>> config = LongT5Config(**sizes, encoder_attention_type="transient-global")
        >>> report = rg.interop.transformers.patch(LongT5ForConditionalGeneration(config))
        >>> report.patched[0].name, report.patched[0].kind, report.patched[0].family
        ('decoder.block.0.layer.0.SelfAttention', 'LongT5Attention', 't5')
        >>> report.unpatched[0].why
        'its queries also see averages of blocks, which have a bias of their own'
    """

    patched: tuple[Patched, ...]
    unpatched: tuple[Unpatched, ...]

    def __str__(self) -> str:
        """One line for all layers that differ only in their number."""
        added, patched = "relations added to: {} ({})", "patched: {} ({}, family {})"
        of = {"relations": added}  # patch is another function
        lines = [of.get(x.family, patched).format(name, x.kind, x.family) for name, x in _by_layers(self.patched)]
        lines += [f"unchanged: {name} ({one.kind}): {one.why}" for name, one in _by_layers(self.unpatched)]
        return "\n".join(lines)


def patch(model: nn.Module, *, families: Iterable[str] | None = None, impl: str | None = None) -> Report:
    """Let relgraph compute the attention of a model of Hugging Face; this changes the model in place.

    Only the computation changes. Parameters, their names, ``state_dict``, ``save_pretrained``, adapters, gradient
    checkpointing, ``torch.compile``, key and value caches and generation work as before, and results agree up to
    rounding. The model no longer makes tensors of N² elements from its tables. Attention weights are not stored, unless
    you ask for them: ``output_attentions=True`` computes them by ``impl="dense"`` and returns them before dropout. A
    call with a mask of heads raises NotImplementedError. Modules with relations, which
    :func:`~relgraph.interop.transformers.add_relations` gives, stay as they are: relgraph computes them already. So do
    those whose forward takes an argument that relgraph does not know.

    Args:
        model: a model, or any module with attention modules within. A second call changes ``impl``.
        families: names of the families to patch, such as ``("t5",)``; all by default.
        impl: as in :func:`~relgraph.relation_attention`; None picks one.

    Returns:
        Which modules were patched, and which attention modules were not and why.

    Raises:
        TypeError: ``families`` that are one string.
        ValueError: an unknown family or ``impl``; or a model without any module that can be patched, which then does
            not change.

    Example:
        >>> from transformers import T5Config, T5EncoderModel
        >>> config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2)
        >>> model = T5EncoderModel(config).eval()
        >>> tokens = torch.tensor([[5, 9, 2, 1]])
        >>> before = model(tokens).last_hidden_state
        >>> print(rg.interop.transformers.patch(model))
        patched: encoder.block.0-1.layer.0.SelfAttention (T5Attention, family t5)
        >>> torch.allclose(model(tokens).last_hidden_state, before, atol=1e-5)
        True
    """
    chosen = chosen_families(families, impl)
    found, unpatched = [], []
    for name, module in _candidates(model):
        mixin, family, why = _looked_up(module, chosen)
        if mixin is None:
            unpatched.append(Unpatched(name, _own_class(module).__name__, why))
        else:
            found.append((name, module, mixin, family))
    found, unpatched = _without_halves(model, found, unpatched)
    if not found:
        raise ValueError(_nothing_found(model, unpatched))
    for _, module, mixin, _ in found:
        setattr(module, IMPL, impl)
        module.__class__ = patched_class(mixin, _own_class(module))
        prepare = getattr(module, "_relgraph_prepare", None)
        if prepare is not None:
            prepare()
    patched = tuple(Patched(name, _own_class(module).__name__, family) for name, module, _, family in found)
    return Report(patched, tuple(unpatched))


def report(model: nn.Module) -> Report:
    """Say which attention modules of a model relgraph computes now, in whichever way.

    Args:
        model: a model, or any module with attention modules within.

    Returns:
        The modules that :func:`~relgraph.interop.transformers.patch` changed, with their family; those that look up
        ``"relgraph"`` by name, with the family of their tables, ``"relations"`` if
        :func:`~relgraph.interop.transformers.add_relations` gave them some, or ``"interface"``; and all others.

    Example:
        >>> from transformers import T5Config, T5EncoderModel
        >>> rg.interop.transformers.register()
        >>> sizes = dict(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
        >>> model = T5EncoderModel(T5Config(**sizes, attn_implementation="relgraph"))
        >>> print(rg.interop.transformers.report(model))
        patched: encoder.block.0-1.layer.0.SelfAttention (T5Attention, family t5)
        >>> rg.interop.transformers.unpatch(model)
        2
    """
    families = {kind: family.name for family in all_families().values() for kind in family.kinds}
    patched, unpatched = [], []
    for name, module in _candidates(model):
        kind = _own_class(module).__name__
        family: str | None = families.get(kind_of(module)) if _is_patched(module) else by_name.family_of(module)
        if family is None:
            unpatched.append(Unpatched(name, kind, "transformers computes it"))
        else:
            patched.append(Patched(name, kind, family))
    return Report(tuple(patched), tuple(unpatched))


def unpatch(model: nn.Module) -> int:
    """Let transformers compute the attention of a model again.

    This undoes :func:`~relgraph.interop.transformers.patch`. If the ``attn_implementation`` of the model is
    ``"relgraph"``, it becomes that which transformers would choose, unless the model has relations, which no other
    implementation reads.

    Args:
        model: a model, or a module within it.

    Returns:
        How many attention modules relgraph computed.

    Example:
        >>> from transformers import T5Config, T5EncoderModel
        >>> model = T5EncoderModel(T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
        >>> _ = rg.interop.transformers.patch(model)
        >>> rg.interop.transformers.unpatch(model)
        1
    """
    patched = [module for _, module in _modules(model) if _is_patched(module)]
    for module in patched:
        module.__class__ = _own_class(module)
        for name in [name for name in vars(module) if name.startswith("_relgraph")]:
            delattr(module, name)
    return len({*patched, *by_name.leave(model)})  # a module may be both


def chosen_families(families: Any, impl: Any) -> dict[str, Family]:
    """The families of these names; raise an error unless they exist, and the implementation."""
    if impl is not None:
        check.choice("impl", impl, tuple(IMPLEMENTATIONS))
    known = all_families()
    if families is None:
        return known
    names = check.items("families", families, "names of families", most=len(known))
    if not names:
        raise ValueError(f"families must have at least one name, got none; {ALL} {len(known)}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"families must be strings, got {type(name).__name__}")
        if name not in known:
            raise ValueError(f"unknown families {shown(name)}; {nearest(name, known)}")
    return {name: known[name] for name in names}


def _modules(model: Any) -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    return model.named_modules()


def _candidates(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Modules that a family knows, and innermost ones that compute and whose class is called an attention."""
    known = {kind for family in all_families().values() for kind in family.kinds}
    inside = {}
    for name, module in _modules(model):
        computes = type(module).forward is not nn.Module.forward
        if bases_of(module) & known or (computes and "Attention" in type(module).__name__):
            inside[name] = module
    for name, module in inside.items():
        holds_another = any(other.startswith(f"{name}." if name else "") for other in inside if other != name)
        if bases_of(module) & known or not holds_another:
            yield name, module


def _looked_up(module: nn.Module, chosen: dict[str, Family]) -> tuple[type | None, str, str]:
    """The mixin for a module and its family, or None and why there is none."""
    if getattr(module, "relation", None) is not None:  # another forward would not read it
        return None, "", "it has relations: relgraph computes it already"
    kind = kind_of(module)
    for family in all_families().values():
        if kind in family.kinds:
            why = _unknown_words(family, module) or family.why_not(module)
            if why is None and "forward" in vars(module):
                why = "its forward was replaced, as hooks of accelerate do; patch before that"
            if why is None and family.name not in chosen:
                why = f"family {family.name} is not among families"
            return (family.kinds[kind], family.name, "") if why is None else (None, "", why)
    if any(bases_of(module) & family.kinds.keys() for family in all_families().values()):
        return None, "", "its class has a forward of its own"
    return None, "", REFUSED.get(kind, "relgraph does not support this class")


def _unknown_words(family: Family, module: nn.Module) -> str | None:
    """Why a module and those that share its tables stay unpatched: one of their classes takes words that are new."""
    folder, name = kind_of(module).split(".")
    file = sys.modules[next(cls.__module__ for cls in _own_class(module).__mro__ if cls.__name__ == name)]
    found = [(mixin, getattr(file, kind.removeprefix(f"{folder}."), None)) for kind, mixin in family.kinds.items()]
    reasons = (unknown_to(mixin, own) for mixin, own in found if own is not None)
    return next((why for why in reasons if why is not None), None)


def _without_halves(
    model: nn.Module, found: list[Any], unpatched: list[Unpatched]
) -> tuple[list[Any], list[Unpatched]]:
    """Patch no attention module of a stack that shares a bias if one stays unpatched; keep the model's order."""
    modules = dict(_modules(model))
    reasons = {one.name: one for one in unpatched}
    for family in all_families().values():
        if not family.whole:
            continue
        kinds = set(family.whole.values())
        stacks = [name for name, module in modules.items() if bases_of(module) & family.whole.keys()]
        sharing = [name for name, module, _, _ in found if bases_of(module) & kinds]
        for name in sharing:
            if not any(name.startswith(f"{stack}." if stack else "") for stack in stacks):
                kind = _own_class(modules[name]).__name__
                raise ValueError(
                    f"model must have the whole stack of {name or 'itself'} ({kind}), whose modules share one bias, "
                    f"got {type(model).__name__}: patch the stack or the model"
                )
        for stack in stacks:
            inside = [name for name in modules if name.startswith(f"{stack}." if stack else "")]
            others = [name for name in inside if name in reasons and bases_of(modules[name]) & kinds]
            for name in sharing if others else ():
                if name in inside:
                    why = f"its stack shares one bias with {others[0]}, which is not patched"
                    reasons[name] = Unpatched(name, _own_class(modules[name]).__name__, why)
    return [one for one in found if one[0] not in reasons], [reasons[name] for name in modules if name in reasons]


def _nothing_found(model: nn.Module, unpatched: list[Unpatched]) -> str:
    """The message about a model without any module to patch."""
    seen = "; ".join(f"{name or 'itself'} ({one.kind}): {one.why}" for name, one in _by_layers(unpatched))
    seen = f"{type(model).__name__} with {seen or 'no attention'}"
    return (
        f"model has no attention that can be patched, got {seen}: docs/howto/hugging-face.md lists the models that "
        "have; add_relations gives labels to BERT, Llama and others"
    )


@functools.cache
def patched_class(mixin: type, own: type) -> type:
    """The class of a patched module: its own with the forward of the mixin."""
    more = {"__module__": mixin.__module__, "_relgraph_own": own, "_relgraph_mixin_of": mixin}
    more["_relgraph_order"] = words_of(own.forward)[1:]
    return type(own.__name__, (mixin, own), more | {"__reduce_ex__": _reduced})


def _reduced(module: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """How pickle and copy handle a patched module: its class has no importable name, but its two base classes do."""
    kind: Any = type(module)
    _, _, *state = object.__reduce_ex__(module, max(protocol, 2))
    return _empty, (kind._relgraph_mixin_of, kind._relgraph_own), *state


def _empty(mixin: type, own: type) -> Any:
    """A patched module that has no attributes yet."""
    kind: Any = patched_class(mixin, own)
    return kind.__new__(kind)


def _is_patched(module: nn.Module) -> bool:
    return hasattr(type(module), "_relgraph_own")


def _own_class(module: nn.Module) -> type:
    """The class that transformers gave a module."""
    return getattr(type(module), "_relgraph_own", type(module))


def _by_layers(found: Iterable[Any]) -> list[tuple[str, Any]]:
    """One entry for all modules whose names differ only in their first number: ``layer.0-11.attention``."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for one in found:
        match = re.match(r"(.*?\.)(\d+)(\..*|$)", one.name)
        before, number, after = match.groups() if match else (one.name, "", "")
        facts = tuple(str(value) for name, value in vars(one).items() if name != "name")
        groups.setdefault((before, after, "many" if number else one.name, *facts), []).append((number, one))
    lines = []
    for (before, after, *_), members in groups.items():
        numbers = [int(number) for number, _ in members if number]
        lines.append((f"{before}{_spans(numbers)}{after}" if numbers else members[0][1].name, members[0][1]))
    return lines


def _spans(numbers: list[int]) -> str:
    """Numbers in order, in words: ``0-3,5``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
