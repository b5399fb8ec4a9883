"""The definition of a family of models, and the list of all families."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple

from torch import nn

FILES = (
    "t5", "deberta", "mpnet", "layoutlm", "conformer", "speech", "sam", "beit", "inkling", "xlnet",
)  # fmt: skip
"""The files of families: each has one as ``FAMILY``, or several as ``FAMILIES``."""


REFUSED = {
    "pp_doclayout_v2.PPDocLayoutV2ReadingOrderSelfAttention": "it has no tables: a network computes its biases from "
    "the boxes of each pair (its softmax is the plain one, computed with another offset)",
    "esmfold2.EsmFold2DiffusionAttention": "it has no tables: a network computes its biases from states of each pair",
    "prophetnet.ProphetNetNgramSelfAttention": "it attends in several streams, and each query computes its own biases",
    **dict.fromkeys(
        (
            "levit.LevitAttention",
            "levit.LevitAttentionSubsample",
            "cpmant.CpmAntAttention",
            "funnel.FunnelRelMultiheadAttention",
            "gemma3n.Gemma3nAudioAttention",
            "gemma4.Gemma4AudioAttention",
            "fastspeech2_conformer.FastSpeech2ConformerAttention",
            "granite_speech5.GraniteSpeech5EncoderAttention",
            "phi4_multimodal.Phi4MultimodalAudioAttention",
            "swin.SwinAttention",
            "donut.DonutSwinSelfAttention",
            "maskformer.MaskFormerSwinSelfAttention",
            "clap.ClapAudioSelfAttention",
            "swinv2.Swinv2SelfAttention",
            "swin2sr.Swin2SRSelfAttention",
        ),
        "relgraph would save too little time and memory there",
    ),
    "longt5.LongT5TransientGlobalAttention": "its queries also see averages of blocks, which have a bias of their own",
}
"""Classes with relative terms that are not worth serving, named as in :class:`Family`, and why."""

ALL = "relgraph.interop.transformers.families.all_families() has all"
"""Where messages that name few families or classes send the reader for the others."""


class Family(NamedTuple):
    """Models whose attention has the same formula.

    Attributes:
        name: the name of the family in ``families=`` of :func:`~relgraph.interop.transformers.patch`.
        models: the models in words, for messages.
        kinds: a class with the forward that replaces its own, by the class of transformers: ``"t5.T5Attention"`` for
            ``transformers.models.t5.modeling_t5.T5Attention``. It is a mixin: everything else comes from transformers.
        why_not: returns why a module of such a class stays unpatched, or None if it is patched.
        whole: by the class of a stack around attention modules that share one bias, the class of these modules: all of
            them are patched or none.
    """

    name: str
    models: str
    kinds: Mapping[str, type]
    why_not: Callable[[nn.Module], str | None] = lambda _: None
    whole: Mapping[str, str] = MappingProxyType({})


def all_families() -> dict[str, Family]:
    """All families by name."""
    files = [import_module(f"{__package__}.{name}") for name in FILES]
    found = [family for file in files for family in getattr(file, "FAMILIES", None) or (file.FAMILY,)]
    return {family.name: family for family in found}


def nearest(name: str, known: Collection[str]) -> str:
    """The three known names that are most like one, and where all are, for messages."""
    near = get_close_matches(name, known, cutoff=0.0)
    return f"the nearest are {', '.join(map(repr, near))}; {ALL} {len(known)}"


def kind_of(module: nn.Module) -> str:
    """The class of transformers whose forward a module has: ``"t5.T5Attention"``; "" if it is not of transformers."""
    for cls in type(module).__mro__:
        if "forward" in vars(cls) and not getattr(cls, "_relgraph_mixin", False):
            return _name_of(cls)
    return ""


def bases_of(module: nn.Module) -> set[str]:
    """The classes of transformers that a module is an instance of, named as in :func:`kind_of`."""
    return {_name_of(cls) for cls in type(module).__mro__ if not getattr(cls, "_relgraph_mixin", False)} - {""}


def _name_of(cls: type) -> str:
    parts = cls.__module__.split(".")
    return f"{parts[2]}.{cls.__name__}" if parts[:2] == ["transformers", "models"] else ""
