"""A differential fuzz: drawn calls, answered by every implementation and by an oracle of loops over pairs.

Read in this order: ``frame`` (which pairs there are), ``labels`` (descriptions of labels that answer for one pair at a
time), ``scores`` (functions of scores with their slopes, and all that is drawn besides the dot product), ``cases`` (a
whole call, drawn from a seed), ``oracle`` (its answer in float64, and how far rounding may move it),
``constants`` (block sizes and thresholds, drawn as well), ``compare`` (implementations held to the oracle),
``label_answers``, ``edge_layers`` and ``attention_layer`` (what stands around the primitive) and ``__main__`` (the
command). Nothing here reads ``to_dense``, a plan or ``reference`` for its answer.
"""
