"""Layers: tables, multi-head attention, Transformer layers and stacks, positions and the cache."""

from relgraph.nn.attention import RelationAttention
from relgraph.nn.cache import KVCache, LayerCache, StackCache
from relgraph.nn.decoder_layer import RelationDecoderLayer
from relgraph.nn.encoder_layer import RelationEncoderLayer
from relgraph.nn.positions import SinusoidalPositions
from relgraph.nn.stack import RelationDecoder, RelationEncoder
from relgraph.nn.table import LabelTable
from relgraph.nn.tables import RelationTables
from relgraph.nn.transformer import RelationTransformer

__all__ = [
    "KVCache",
    "LabelTable",
    "LayerCache",
    "RelationAttention",
    "RelationDecoder",
    "RelationDecoderLayer",
    "RelationEncoder",
    "RelationEncoderLayer",
    "RelationTables",
    "RelationTransformer",
    "SinusoidalPositions",
    "StackCache",
]
