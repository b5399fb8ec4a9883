"""What processes compare of a call before any data travel: a text for all that changes the answer or what travels.

Without this, a process could wait for rows that never come. Every process compares the same texts, so all raise the
same error.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils import _pytree as pytree

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.call import Given
from relgraph.call.operands import DEFAULTS, POSITIONAL, Options
from relgraph.labels import Labels
from relgraph.labels.memory import memory_of
from relgraph.score import Compatibility, Named

_WANTED = {"need_weights": False, "need_label_mass": False}
_ELSEWHERE = {"labels", "edge_attr", "edge_key", "edge_value"}
"""Arguments that are compared by other means, or that regions refuse."""
_NAMES = [name for name in (*POSITIONAL, *Options.__annotations__, *_WANTED) if name not in _ELSEWHERE]


def form_of(given: Given, *, need_lse: bool) -> dict[str, str]:
    """A text for each argument but the labels, by its name."""
    defaults = {**DEFAULTS, **_WANTED}
    named = {name: given.get(name, defaults.get(name)) for name in _NAMES}
    named["need_lse"] = need_lse
    for name in ("dropout_p", "scale"):  # 0 and 0.0 are the same
        named[name] = float(named[name]) if type(named[name]) is int else named[name]
    query = given["query"]
    if isinstance(query, Tensor):
        named["the dtype of autocast"] = check.autocast_dtype(query.device.type)
    return {name: described(x, values=name == "q_offset") for name, x in named.items()}


def described(x: Any, *, values: bool = False) -> str:
    """What must be equal in an argument, as a text: of tensors the shape, dtype and whether they need a gradient.

    With ``values`` the elements of a small tensor, if reading them waits for no device.
    """
    if isinstance(x, Tensor) and not x.is_nested:
        readable = x.device.type == "cpu" and x.layout == torch.strided and check.can_look_at_data(x)
        if values and readable and x.dim() < 2:
            return str(x.tolist())
        gradient = ", requires_grad=True" if x.requires_grad and torch.is_grad_enabled() else ""
        return f"{x.dtype} {list(x.shape)}{gradient}"
    if isinstance(x, (tuple, list)):
        return f"({', '.join(described(each) for each in x)})"
    if isinstance(x, Labels):
        return f"{type(x).__name__} [{x.q_len}, {x.k_len}] of {x.num_labels} labels"
    if isinstance(x, Compatibility) and x.replaces_dot:
        return f"{x!r} {described(x.weight)} {described(x.function)}"
    if isinstance(x, nn.Module):
        return " ".join([repr(x), *map(described, x.parameters())])
    if callable(x) and not isinstance(x, Named):
        return getattr(x, "__qualname__", type(x).__name__)  # its repr may have an address
    return shown(x) if isinstance(x, (str, int, float, Named, torch.dtype, type(None))) else type(x).__name__


def fingerprint(labels: Labels, *, whole: bool) -> str:
    """A text that is equal for two labels only if they are equal; for cut labels, it covers their common part.

    Numbers that are not integers may differ by rounding, so of these it has only type and shape.
    """
    kind = type(labels).__name__
    if not whole:
        return f"{kind} of {labels.num_labels} labels and {labels.k_len} keys"

    def make() -> str:
        tensors, spec = pytree.tree_flatten(labels)
        digest = hashlib.blake2b(repr(spec).encode(), digest_size=8)
        for tensor in tensors:
            digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            if tensor.is_floating_point():
                continue
            flat = tensor.detach().cpu().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        return f"{kind} [{labels.q_len}, {labels.k_len}] with digest {digest.hexdigest()}"

    return memory_of([labels], "fingerprint").once("whole", make)


def shared_seed(device: torch.device, group: Any, own: Tensor | None = None) -> Tensor:
    """The seed for dropout of process 0: its ``own``, or one from the device's generator, as a single process draws."""
    seed = torch.randint(1 << 62, (), device=device) if own is None else own.clone()
    if distributed.get_world_size(group) > 1:
        distributed.broadcast(seed, distributed.get_global_rank(group, 0), group=group)
    return seed
