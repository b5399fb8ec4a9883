"""Layers: tables, multi-head attention, Transformer layers and stacks, positions and the cache.

- :class:`~relgraph.RelationAttention`: multi-head attention, like :class:`~torch.nn.MultiheadAttention`.
- :class:`~relgraph.RelationEncoderLayer`, :class:`~relgraph.RelationDecoderLayer`: Transformer layers around it.
- :class:`~relgraph.RelationEncoder`, :class:`~relgraph.RelationDecoder`: stacks of them.
- :class:`~relgraph.RelationTransformer`: an encoder and a decoder, with the presets of Shaw et al. 2018.
- :class:`~relgraph.nn.RelationalEdges`: vectors of edges that each layer makes anew.
- :class:`~relgraph.nn.LabelTable`, :class:`~relgraph.RelationTables`: the learned rows of labels.
- :class:`~relgraph.KVCache`, :class:`~relgraph.nn.LayerCache`, :class:`~relgraph.nn.StackCache`: keys and values kept
  between calls, for one attention, a decoder layer, a stack.
- :class:`~relgraph.SinusoidalPositions`, :class:`~relgraph.nn.LearnedPositions`: absolute positions, added to
  the input.
- :class:`~relgraph.RotaryPositions`: positions that turn queries and keys.
- :class:`~relgraph.nn.RandomPositions`, :class:`~relgraph.nn.ShiftedPositions`: positions drawn anew in training.
- :func:`~relgraph.nn.alibi_tables`: fixed biases by distance.
- :func:`~relgraph.nn.check_label_names`: compares the label names in a state with those of a model's tables.
- :func:`~relgraph.record_attention`: records what every attention layer inside a model attends to.

Files, in the order in which an input meets them:

- ``position_samplers``: positions drawn in training; ``positions``: vectors of positions, added to the input.
- ``transformer``, ``stack``: encoder and decoder together; stacks, which make the labels once for all layers.
- ``encoder_layer``, ``decoder_layer``: one layer each; ``layer_parts``: what they share.
- ``plain``: weights and settings of torch's layers.
- ``attention``: multi-head attention; ``projections``: its weights and biases; ``made_labels``: the labels of a call.
- ``inputs``, ``masks``: the checks of its inputs; its masks joined into one.
- ``rotary``: queries and keys turned by their positions.
- ``edge_states``: attention that reads a vector per edge, and the next vectors.
- ``cache``: keys and values of earlier calls; ``steps``: the inputs of a step of decoding like the one before.
- ``table``, ``tables``: one table; the four tables of one attention; ``value_maps``: the maps of values per label;
  ``alibi``: tables of fixed biases; ``gates``: vectors per label that multiply keys or values; ``edge_maps``: maps of
  features of edges.
- ``scores``: the checks of a layer's score; ``memory``: a packed memory of a padded target.
- ``record``: hooks that record attention.
"""

from relgraph.arguments.public import lists_public
from relgraph.nn.alibi import alibi_tables as alibi_tables
from relgraph.nn.attention import RelationAttention as RelationAttention
from relgraph.nn.cache import KVCache as KVCache
from relgraph.nn.cache import LayerCache as LayerCache
from relgraph.nn.cache import StackCache as StackCache
from relgraph.nn.decoder_layer import RelationDecoderLayer as RelationDecoderLayer
from relgraph.nn.edge_states import RelationalEdges as RelationalEdges
from relgraph.nn.encoder_layer import RelationEncoderLayer as RelationEncoderLayer
from relgraph.nn.position_samplers import RandomPositions as RandomPositions
from relgraph.nn.position_samplers import ShiftedPositions as ShiftedPositions
from relgraph.nn.positions import LearnedPositions as LearnedPositions
from relgraph.nn.positions import SinusoidalPositions as SinusoidalPositions
from relgraph.nn.record import record_attention as record_attention
from relgraph.nn.rotary import RotaryPositions as RotaryPositions
from relgraph.nn.stack import RelationDecoder as RelationDecoder
from relgraph.nn.stack import RelationEncoder as RelationEncoder
from relgraph.nn.table import LabelTable as LabelTable
from relgraph.nn.table import check_label_names as check_label_names
from relgraph.nn.tables import RelationTables as RelationTables
from relgraph.nn.transformer import RelationTransformer as RelationTransformer

__dir__ = lists_public(globals())
