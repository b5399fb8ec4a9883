"""A learned score for each head that takes part in the softmax and carries no value: a sink for attention.

    α_ij = exp(e_ij) / (exp(sink_h) + Σ_j exp(e_ij))

Implementations do not handle sinks. With lse_i = log Σ_j exp(e_ij), all weights of a row without a sink are multiplied
by one number, exp(lse_i) / (exp(sink_h) + exp(lse_i)), and so are the output and label masses, dropout or not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.call import Answer


def with_sink(answer: Answer, sink: Tensor | None) -> Answer:
    """The answer to the same call with a sink ``[H]``; an output in the layout of a packed caller keeps it."""
    if sink is None:
        return answer
    share = share_of_keys(answer.lse, sink)
    of_rows = share[0].T if answer.output.dim() == 3 else share
    mass = None if answer.mass is None else tuple(x * share[..., None] for x in answer.mass)
    weights = None if answer.weights is None else answer.weights * share[..., None]
    lse = torch.logaddexp(answer.lse, sink.to(share.dtype)[:, None])
    return Answer(answer.output * of_rows[..., None], lse, mass, weights)


def share_of_keys(lse: Tensor, sink: Tensor) -> Tensor:
    """The share of the attention of each row that keys keep, σ(lse - sink), for a sink ``[H]`` or ``[B, H, N_q]``."""
    sink = sink[:, None] if sink.dim() == 1 else sink
    lowest = torch.finfo(lse.dtype).min  # -inf less a sink of -inf would be NaN
    return (lse.clamp(min=lowest) - sink.to(lse.dtype)).sigmoid()
