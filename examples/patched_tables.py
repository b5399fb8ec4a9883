"""What a patched model has learned
================================

A patched T5 learns a task that asks for four distances; pictures show how its heads share them.

T5 knows positions only from a table: it has a number per head and bucket of the distance, which T5 adds to the scores.
While this tiny T5 trains, relgraph computes its attention. Its weights start at random, and nothing is downloaded.
"""

import torch
from torch import nn
from transformers import T5Config, T5EncoderModel

import relgraph as rg
from relgraph.interop.transformers import patch, unpatch

DISTANCES, SYMBOLS, LENGTH, TEXTS = (-6, -2, 1, 4), 16, 24, 16
SIZES = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": len(DISTANCES)}

torch.manual_seed(seed := 0)
encoder = T5EncoderModel(T5Config(vocab_size=SYMBOLS, dropout_rate=0.0, **SIZES))
answers = nn.Linear(64, len(DISTANCES) * SYMBOLS)
print(patch(encoder))  # works before and after training

# %%
# A text is 24 random symbols. At each place the model names four other symbols: six and two places before it, and one
# and four places after it. To answer, it has to look at exactly these distances. It is one layer of T5, with as many
# heads as distances, and one linear map to the answers.

NOT_ASKED = -100  # cross_entropy ignores it


def texts(generator):
    """Texts ``[TEXTS, LENGTH]``, and the symbols to name, ``[TEXTS, LENGTH, 4]``."""
    symbols = torch.randint(SYMBOLS, (TEXTS, LENGTH), generator=generator)
    places = torch.arange(LENGTH)[:, None] + torch.tensor(DISTANCES)
    asked = symbols[:, places.clamp(0, LENGTH - 1)]
    return symbols, asked.masked_fill((places < 0) | (places >= LENGTH), NOT_ASKED)


def scores(symbols):
    """Scores ``[TEXTS, LENGTH, 4, SYMBOLS]``."""
    return answers(encoder(symbols).last_hidden_state).unflatten(-1, (len(DISTANCES), SYMBOLS))


def share_right(symbols, asked):
    return (scores(symbols).argmax(-1) == asked)[asked != NOT_ASKED].double().mean().item()


# %%
# The numbers in the table must become large to single out one of 24 keys, so the table learns ten times as fast.

attention = encoder.encoder.block[0].layer[0].SelfAttention
table = attention.relative_attention_bias.weight
others = [parameter for part in (encoder, answers) for parameter in part.parameters() if parameter is not table]
optimizer = torch.optim.Adam([{"params": others}, {"params": [table], "lr": 1e-1}], 1e-2)
generator = torch.Generator().manual_seed(seed)
for _ in range(steps := 300):
    symbols, asked = texts(generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(scores(symbols).flatten(0, 2), asked.flatten(), ignore_index=NOT_ASKED).backward()
    optimizer.step()

new = texts(torch.Generator().manual_seed(1000))
print(f"{share_right(*new):.1%} right in unseen texts")

# %%
# The model also works without relgraph: its own weights hold what it has learned.

unpatch(encoder)
print(f"{share_right(*new):.1%} right, computed by transformers")

# %%
# A layer of relgraph takes T5's weights; its labeler names the rows of the table. Only differences of a head's biases
# matter, since adding the same number to all scores does not change a softmax. T5 has a separate bucket for each
# distance below 8; larger distances share buckets.

labeler = rg.BucketedDistance(32, 128)
tables = rg.RelationTables(labeler, 16, heads=len(DISTANCES), kinds=("bias",), per_head=True)
layer = rg.RelationAttention(64, len(DISTANCES), bias=False, labeler=labeler, tables=tables, scale=1.0)
weights = {
    "in_proj_weight": torch.cat([one.weight for one in (attention.q, attention.k, attention.v)]),
    "out_proj.weight": attention.o.weight,
    "tables.bias.rows": table.T,
}
layer.load_state_dict(weights, strict=False)
ax = rg.plot.table_norms(layer.tables.bias)

# %%
# The table is one part of the score; the product of query and key is the other. The mass of a label reflects both: it
# is the attention that the label's pairs receive, here from queries with keys at all four distances. The picture
# has the distances below 8.

with torch.no_grad():
    x = encoder.encoder.block[0].layer[0].layer_norm(encoder.shared(new[0]))
    _, weights, mass = layer(x, labels=labeler(LENGTH), need_weights=True, need_label_mass=True)
mass = mass[:, :, -min(DISTANCES) : LENGTH - max(DISTANCES)]
near = range(-7, 8)
ax = rg.plot.label_mass(mass[..., [labeler.names.index(str(distance)) for distance in near]], near)

# %%
# A head that looked at all keys equally would give each distance one part in 24, 4 %.

shares = mass.mean((0, 2))[:, [labeler.names.index(str(distance)) for distance in DISTANCES]]
for head, row in enumerate(shares.tolist()):
    found = ", ".join(f"{share:.0%} at {distance}" for share, distance in zip(row, DISTANCES, strict=True))
    print(f"head {head}: {found}, {1 - sum(row):.0%} elsewhere")
print(f"{shares.sum(-1).mean():.1%} of the attention is at the four distances")

# %%
# In one text, the mean over heads shows four diagonals, one for each distance.

ax = rg.plot.attention_tokens(weights[0], [chr(ord("A") + symbol) for symbol in new[0][0].tolist()])

# %%
# With seeds 0 to 4 (edit ``seed``), 99.6 % ± 0.8 of the answers in unseen texts are right, and 99.9 % ± 0.1 of the
# attention is at the four distances (2026-11, one thread of a busy AMD EPYC). Chance decides which head takes which
# distance, and not every head keeps to one: with seed 1, three of the four split their attention.
