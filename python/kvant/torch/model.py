"""``quantize_model``: every Linear of a model becomes a QuantizedLinear."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence

from torch import nn

from .linear import QuantizedLinear


def quantize_model(model: nn.Module, *, ignore: Sequence[str] = ("lm_head",), mode: str = "symmetric") -> List[str]:
    """Replaces every nn.Linear of ``model`` by a QuantizedLinear, and returns the names of the replaced modules.

    ignore: modules to leave alone, by name, or as ``re:`` and a regular expression that must match from the start of
    the name, as in ``kvant quantize --ignore``. Subclasses of nn.Linear are left alone too, because their owners may
    read the weight directly, as nn.MultiheadAttention does. nn.TransformerEncoderLayer reads it on its fast path: turn
    that off with ``torch.backends.mha.set_fastpath_enabled(False)``.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> quantize_model(model, ignore=["re:2"])
    ['0']
    >>> model[0]
    QuantizedLinear(in_features=4, out_features=8, bias=True, symmetric)
    """
    if isinstance(model, nn.Linear):
        raise ValueError("the model is itself a Linear, which cannot be replaced: use QuantizedLinear.from_linear")
    if isinstance(ignore, str):
        raise TypeError("ignore must be a sequence of names, not one string")

    def ignored(name: str) -> bool:
        return any(re.match(p[3:], name) is not None if p.startswith("re:") else p == name for p in ignore)

    # A module that has several names stays one module.
    named = model.named_modules(remove_duplicate=False)
    linears = [(name, module) for name, module in named if type(module) is nn.Linear and not ignored(name)]
    made: Dict[nn.Linear, QuantizedLinear] = {}
    for _, linear in linears:
        if linear not in made:
            made[linear] = QuantizedLinear.from_linear(linear, mode=mode)
    for name, linear in linears:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[linear])
    return [name for name, _ in linears]
