"""The gradients of the query and key biases: the key's is numerically zero (4.7.1, Fig. 3)."""

import torch
from torch import Tensor

from identcli.symmetry.pair import Pair


def measure_bias_gradients(gradient: Pair) -> dict[str, Tensor]:
    """`query_max`, `query_norm`, `key_max`, `key_norm`, each (L,): the largest entry and the norm over all heads of a
    layer, of the gradients of b_Q and b_K after clipping. NaN for a bias that the model lacks.
    """
    columns = {}
    for name, bias in (("query", gradient.a), ("key", gradient.b)):
        flat = gradient.A.new_full((gradient.A.shape[0], 1), torch.nan) if bias is None else bias.flatten(1)
        columns[f"{name}_max"] = flat.abs().amax(-1)
        columns[f"{name}_norm"] = torch.linalg.vector_norm(flat, dim=-1)
    return columns
