"""PyTorch Geometric layers and transforms over labeled graphs; needs the extra ``relgraph[pyg]``."""

from __future__ import annotations

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise ImportError("relgraph.pyg needs PyTorch Geometric: pip install 'relgraph[pyg]'") from None

__all__: list[str] = []
