"""A callback of Trainer that lets relgraph compute the attention of its model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel, TrainerCallback

from relgraph.interop.transformers.by_name import NAME, through_interface
from relgraph.interop.transformers.interface import register
from relgraph.interop.transformers.patching import Report, chosen_families, patch, report


class RelgraphCallback(TrainerCallback):
    """Let relgraph compute the attention of the model of a ``Trainer``, before it trains.

    Modules that a family of :func:`~relgraph.interop.transformers.patch` knows are patched. If there are none, the
    model is switched to ``attn_implementation="relgraph"``. Modules with relations stay as they are.

    Attributes:
        report: which modules relgraph computes, once there is a trainer.

    Args:
        families: as in :func:`~relgraph.interop.transformers.patch`.
        impl: as in :func:`~relgraph.interop.transformers.patch`.

    Raises:
        TypeError, ValueError: the errors of ``patch`` about ``families`` and ``impl``.

    Example:
        >>> from transformers import T5Config, T5EncoderModel, Trainer, TrainingArguments
        >>> sizes = dict(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
        >>> callback = rg.interop.transformers.RelgraphCallback()
        >>> arguments = TrainingArguments(output_dir="out", use_cpu=True, report_to=[])
        >>> _ = Trainer(T5EncoderModel(T5Config(**sizes)), arguments, callbacks=[callback])
        >>> print(callback.report)
        patched: encoder.block.0-1.layer.0.SelfAttention (T5Attention, family t5)
    """

    def __init__(self, families: Iterable[str] | None = None, impl: str | None = None) -> None:
        chosen = chosen_families(families, impl)
        self.families = None if families is None else tuple(chosen)
        self.impl = impl
        self.report: Report | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Change the model of the trainer.

        Args:
            args: those of the trainer, unchanged.
            state: that of the trainer, unchanged.
            control: that of the trainer, unchanged.
            given: ``model`` is that of the trainer.

        Raises:
            ValueError: a model without attention that relgraph can compute, or the errors of ``patch``.
        """
        model: nn.Module = given["model"]
        try:
            patch(model, families=self.families, impl=self.impl)
        except ValueError as error:
            chosen = self.families is not None or self.impl is not None
            self.report = report(model)
            if not chosen and any(one.family == "relations" for one in self.report.patched):
                return
            within: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]
            if not any(through_interface(type(module)) for module in model.modules()):
                raise ValueError(f"model must have attention that relgraph can compute: {error}") from error
            if chosen or not isinstance(within, PreTrainedModel):
                raise
            register()
            within.set_attn_implementation(NAME)
        self.report = report(model)
