"""What the computations of the originals share: split heads, attention with a vector for each pair, and comparison."""

from __future__ import annotations

import torch

EXACT = 1e-12


def heads_of(x, head_dim):
    """``[B, N, H · D]`` as ``[B, H, N, D]``."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def joined(x):
    """The other way."""
    return x.transpose(1, 2).flatten(2)


def attend(q, k, v, a_k=None, a_v=None, hidden=None):
    """Attention with vectors ``[N_q, N_k, D]`` or ``[B, N_q, N_k, D]`` on keys and values; True hides."""
    pairs = "bijd" if a_k is not None and a_k.dim() == 4 else "ijd"
    scores = q @ k.mT
    if a_k is not None:
        scores = scores + torch.einsum(f"bhid,{pairs}->bhij", q, a_k)
    scores = scores / q.shape[-1] ** 0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, -1e9)
    alpha = scores.softmax(-1)
    z = alpha @ v
    return z if a_v is None else z + torch.einsum(f"bhij,{pairs}->bhid", alpha, a_v)


def random_state(shapes, dtype=torch.float64, seed=0):
    """A tensor for each shape, by name, large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()
    }


def same(new, old):
    """Equal in float64."""
    torch.testing.assert_close(new, old, rtol=EXACT, atol=EXACT)


def same_with_gradients(new, old, *inputs):
    """Two functions of these inputs give the same values, and the same gradients of the inputs."""
    new_in, old_in = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    new_z, old_z = new(*new_in), old(*old_in)
    same(new_z, old_z)
    weights = torch.randn(old_z.shape, generator=torch.Generator().manual_seed(1), dtype=old_z.dtype)
    (new_z * weights).sum().backward()
    (old_z * weights).sum().backward()
    for one, other in zip(new_in, old_in, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-10)


def later(n):
    """Which keys come after each query."""
    return torch.ones(n, n, dtype=torch.bool).triu(1)
