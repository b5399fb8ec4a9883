"""Whether a patched model is the model that it was: outputs, hidden states, losses, all gradients, training, files."""

from __future__ import annotations

import copy

import torch
from torch import nn

from relgraph.interop import transformers as ours
from relgraph.interop.transformers import common

EXACT, SINGLE = 1e-12, 1e-5
"""Allowed difference in float64, and where the code of transformers computes in float32 whatever it is given."""


def randomized(model, std=0.3):
    """The model in eval mode, with weights large enough that attention is far from uniform."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    return model.eval()


def padded(batch, length, left=0, right=0):
    """A mask of 0 and 1: the first row padded on the right, the second on the left."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - right :] = 0
    if batch > 1:
        mask[1, :left] = 0
    return mask


def everything(model, inputs, *, keep=None, training=False):
    """All floating tensors that a model gives, by name, and all gradients; padded positions, which mean nothing, cut.

    ``keep`` is a mask ``[B, N]`` of the positions that count in tensors ``[B, N, ...]``.
    """
    model = model.train(training)
    model.zero_grad()
    outputs = model(**inputs)
    found = {}
    for name, value in outputs.items():
        for number, one in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                found[f"{name} {number}"] = one
    if keep is not None:
        for name, one in found.items():
            if one.shape[:2] == keep.shape:
                found[name] = one[keep.bool()]
    total = found.get("loss 0")
    if total is None:  # no sums: those of a normalized output are constant
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum()
            for x in found.values()
            if x.requires_grad
        )
    total.backward()
    gradients = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {name: x.detach() for name, x in found.items()} | gradients


def assert_same(found, wanted, allowed):
    """Both have the same tensors, nearly: errors as a share of the largest number, at least 1."""
    assert found.keys() == wanted.keys()
    for name, theirs in wanted.items():
        mine = found[name]
        assert mine.shape == theirs.shape, name
        error = (mine.double() - theirs.double()).abs().max().item() if theirs.numel() else 0.0
        assert error <= allowed * max(1.0, theirs.abs().max().item() if theirs.numel() else 0.0), f"{name}: {error:.1e}"


def assert_parity(model, inputs, *, keep=None, allowed=EXACT, families=None):
    """The patched model answers as the model does; after unpatching it is the model again. Returns the report."""
    mine = copy.deepcopy(model)
    report = ours.patch(mine, families=families)
    assert report.patched
    assert list(mine.state_dict()) == list(model.state_dict())
    wanted = everything(model, inputs, keep=keep)
    assert_same(everything(mine, inputs, keep=keep), wanted, allowed)
    assert ours.unpatch(mine) == len(report.patched)
    assert_same(everything(mine, inputs, keep=keep), wanted, 0.0)
    return report


def checkpoint(model):
    """Turn checkpointing on."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def losses(model, inputs, steps=4):
    """The losses of some steps of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


def assert_same_training(model, inputs, allowed=1e-6):
    """Four steps of training, dropout off, give the same losses."""
    mine = copy.deepcopy(model)
    ours.patch(mine)
    assert (losses(mine.eval(), inputs) - losses(model.eval(), inputs)).abs().max() <= allowed


def assert_saved_and_loaded(model, inputs, folder, allowed=0.0):
    """A patched model is saved as the model is, loads into an unpatched one, and that one patched answers the same."""
    mine = copy.deepcopy(model)
    ours.patch(mine)
    mine.save_pretrained(folder)
    back = type(model).from_pretrained(folder).to(next(model.parameters()).dtype).eval()
    for (name, one), (other, two) in zip(back.state_dict().items(), model.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(one, two), name
    ours.patch(back)
    assert_same(everything(back, inputs), everything(mine, inputs), allowed)


def refuse_weights(monkeypatch):
    """Let patched modules raise if they are asked for weights."""
    answered = common.attention

    def attention(given):
        if given["need_weights"]:
            raise TypeError("weights are asked for")
        return answered(given)

    monkeypatch.setattr(common, "attention", attention)
