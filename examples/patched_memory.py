"""A small T5 that reads 8,192 tokens
==================================

One line makes a small T5 encoder read 8,192 tokens in under 100 MiB, where transformers needs 3.1 GiB.

.. image:: /gallery/images/patched_memory.png
   :alt: peak memory and CPU seconds of a forward pass in the long run, by way

T5 adds a learned number to each score. transformers writes these numbers out for all pairs: N² per head, and as many
scores and weights. relgraph keeps T5's table, which has a row for each of 32 buckets of the distance.
"""

import ctypes
import resource
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from transformers import T5Config, T5EncoderModel

import relgraph as rg

BUCKETS = rg.BucketedDistance(32, 128)  # the row of the table for each distance
WAYS, CALLS = ("eager", "sdpa", "patched"), ("forward", "training step")
SIZES = {"vocab_size": 1000, "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}

# %%
# The weights are random, since their values do not affect time or memory. ``eager`` and ``sdpa`` are the attention
# implementations of transformers; T5 has ``sdpa`` from version 5 on.


def make_model(way):
    """The same encoder for all ways."""
    torch.manual_seed(0)
    theirs = "eager" if way == "patched" else way
    model = T5EncoderModel(T5Config(dropout_rate=0.0, attn_implementation=theirs, **SIZES))
    if way == "patched":
        rg.interop.transformers.patch(model)
    return model


def tokens(length):
    return torch.randint(1, SIZES["vocab_size"], (1, length), generator=torch.Generator().manual_seed(length))


def once(model, text, call):
    """The last hidden states ``[1, N, 128]``; a training step also computes all gradients."""
    model.zero_grad()
    with torch.set_grad_enabled(call == "training step"):
        states = model(text).last_hidden_state
    if states.requires_grad:
        states.square().mean().backward()
    return states


# %%
# Memory is the peak of the first call above what the process held before: PyTorch, transformers and the weights.
# Python has ``resource`` on Linux and macOS only, and only Linux can start a new peak.


def peak():
    """The most memory in MiB that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux counts the memory of the process that started this one into ru_maxrss
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(way, call, length, steps=1):
    """MiB of the first call, and CPU seconds per call: the median of the next ``steps``."""
    model, text, seconds = make_model(way), tokens(length), []
    once(model, tokens(16), call)  # loads what all calls need
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).malloc_trim(0)  # returns the memory that earlier calls have freed
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    before = peak()
    once(model, text, call)
    mib = peak() - before
    for _ in range(steps):
        start = time.process_time()  # counts this process only
        once(model, text, call)
        seconds.append(time.process_time() - start)
    return mib, median(seconds)


if __name__ == "__main__":
    text, model = tokens(1024), make_model("eager")
    wanted = once(model, text, "forward")
    print(rg.interop.transformers.patch(model))  # the one line
    error = (once(model, text, "forward") - wanted).abs().max() / wanted.abs().max()
    print(f"patched and not: at most {error:.0e} of the largest number apart")
    for way, length in (("patched", 8192), ("patched", 1024), ("eager", 1024)):
        mib, seconds = measure(way, "forward", length)
        print(f"{way}, {length:,} tokens: {mib:,.0f} MiB, {seconds:.2f} CPU seconds")
    rg.plot.label_matrix(BUCKETS(200), BUCKETS.names)

# %%
# The picture shows the bucket of each pair of the first 200 tokens.
#
# **What came out.** ``python examples/run.py patched_memory``: MiB and CPU seconds of a call, by number of tokens
# (2026-11, one thread of a busy AMD EPYC, transformers 5.23)::
#
#     row                        512   1,024   2,048   4,096   8,192  s: 512   1,024   2,048   4,096   8,192
#     forward, eager            31.1    99.7   211.3   802.7  3160.1    0.03    0.14    0.92    3.75   12.98
#     forward, sdpa             14.5    51.9   202.0   796.0  3156.4    0.03    0.13    0.66    2.81    8.97
#     forward, patched           9.6    12.9    20.8    44.9    95.3    0.02    0.05    0.11    0.32    1.17
#     training step, eager      35.8   170.5   347.2  1269.4       –    0.10    0.34    1.88    7.10       –
#     training step, sdpa       41.1   134.3   397.6  1527.8       –    0.09    0.36    1.66    6.73       –
#     training step, patched    16.8    33.8    57.8   124.0   244.0    0.06    0.12    0.35    1.30    3.98
#
# From 4,096 to 8,192 tokens, transformers needs four times the memory, the patched model twice. Time still grows with
# the square of the length, since all pairs attend. The dashes are training steps that were not run; by the growth of
# their rows they would need about 5 to 6 GiB. A new process measures each call, one after the other, so ratios of
# seconds are rough. Memory varies: 8,192 tokens took 65 to 95 MiB, patched, in 21 measurements.
# :doc:`The benchmarks </benchmarks>` take ratios within rounds, and measure T5-small.
