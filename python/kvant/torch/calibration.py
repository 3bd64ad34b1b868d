"""``calibrate``: the input ranges of each Linear, for ``kvant quantize --stats``."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Set, Tuple, Union

import torch
from torch import Tensor, nn

from .ranges import extend_range
from .safetensors import write_safetensors
from .tensors import plain


class _InputRange:
    """The range of every input channel of one module, over all calls."""

    def __init__(self, names: List[str], in_features: int) -> None:
        self.names = names
        self.low = torch.full((in_features,), float("inf"))
        self.high = torch.full((in_features,), float("-inf"))
        self.absmax = torch.zeros(in_features)
        self.rows = 0
        self.not_finite = 0

    def observe(self, module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        x = args[0] if args else kwargs["input"]
        # float64 becomes float32 here, not at the end. Rounding keeps the order of values, so the result is the same.
        x = plain(x).to("cpu", torch.float32 if x.dtype == torch.float64 else x.dtype)
        x = x.reshape(-1, self.low.numel())
        self.rows += x.shape[0]
        self.not_finite += x.numel() - int(torch.isfinite(x).sum())
        extend_range(x, "channel", 1, self.low, self.high, self.absmax)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        # Not inference_mode: a model may keep tensors that it makes, and training cannot use tensors made there.
        with torch.no_grad():
            yield
    finally:
        for module, mode in training:
            module.training = mode


def _call(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Tensor):
        model(batch)
    elif isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, (tuple, list)):
        model(*batch)
    else:
        raise TypeError(
            f"a batch must be a tensor, a tuple or list of positional or a dict of keyword arguments, "
            f"not {type(batch).__name__}"
        )


def _chosen_linears(
    model: nn.Module, modules: Union[Iterable[str], Callable[[str, nn.Module], bool], None]
) -> Dict[nn.Linear, List[str]]:
    named = list(model.named_modules(remove_duplicate=False))
    if modules is None or callable(modules):
        found = [(n, m) for n, m in named if isinstance(m, nn.Linear) and (modules is None or modules(n, m))]
    else:
        if isinstance(modules, str):
            raise TypeError("modules must be names or a function of name and module, not one string")
        wanted: Set[str] = set(modules)
        found = [(n, m) for n, m in named if n in wanted and isinstance(m, nn.Linear)]
        missing = sorted(wanted - {n for n, _ in found})
        if missing:
            raise ValueError(f"the model has no Linear named {', '.join(missing)}")
    if not found:
        raise ValueError("there is nothing to calibrate: no nn.Linear was found or chosen")
    linears: Dict[nn.Linear, List[str]] = {}
    for name, module in found:
        linears.setdefault(module, []).append(name)
    return linears


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    path: Union[str, os.PathLike[str]] = "activation_stats.safetensors",
    *,
    modules: Union[Iterable[str], Callable[[str, nn.Module], bool], None] = None,
) -> str:
    """Runs ``model`` on ``batches`` and writes the input ranges of each nn.Linear. Returns the path.

    For each Linear and each input channel j, over all rows x of all batches::

        absmax[j] = max |x[j]|      min[j] = min x[j]      max[j] = max x[j]

    ``kvant quantize --stats FILE`` reads this file. It is a safetensors file with ``<name>.absmax``, ``<name>.min`` and
    ``<name>.max``, float32 [in_features], for the names of ``model.named_modules()``. The names must be those of the
    checkpoint, so give the model that was loaded from it, not a wrapper around it. The file is written at the end, and
    is either complete or absent.

    batches: tensors, tuples or lists (positional arguments) or dicts (keyword arguments of the model).
    modules: which Linears, by name or as a function of name and module; by default all.

    The model runs without gradients in eval mode. After that it is as before, without hooks. NaN and infinities are
    left out, with a warning. So are modules that no batch has reached, which happens to experts.

    >>> import os, tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = calibrate(model, [torch.randn(16, 4) for _ in range(3)], os.path.join(folder.name, "stats.safetensors"))
    >>> os.path.basename(path)
    'stats.safetensors'
    >>> folder.cleanup()
    """
    if isinstance(batches, (Tensor, Mapping, str)):
        raise TypeError(f"batches must be an iterable of batches, not one {type(batches).__name__}: put it into a list")
    path = os.fspath(path)
    # Better to fail now than after all batches have run.
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"the folder for the statistics does not exist: {folder}")
    if os.path.isdir(path):
        raise IsADirectoryError(f"the statistics need a file name, but this is a folder: {path}")
    chosen = _chosen_linears(model, modules)
    ranges = {linear: _InputRange(names, linear.in_features) for linear, names in chosen.items()}
    hooks = []
    ran = 0
    try:
        for linear, inputs in ranges.items():
            hooks.append(linear.register_forward_pre_hook(inputs.observe, with_kwargs=True))
        with _evaluating(model):
            for batch in batches:
                _call(model, batch)
                ran += 1
    finally:
        for hook in hooks:
            hook.remove()
    if ran == 0:
        raise ValueError("there are no batches to calibrate with")
    write_safetensors(path, _statistics(list(ranges.values())))
    return path


def _statistics(ranges: Sequence[_InputRange]) -> Dict[str, Tensor]:
    reached = [r for r in ranges if r.rows > 0]
    if not reached:
        raise ValueError("no batch has reached any of the modules")
    for inputs in reached:
        empty = torch.nonzero(torch.isinf(inputs.low)).reshape(-1).tolist()
        if empty:
            raise ValueError(
                f"the input of {inputs.names[0]} has no finite value in channel {empty[0]} ({len(empty)} such channels)"
            )
    not_reached = [name for r in ranges if r.rows == 0 for name in r.names]
    if not_reached:
        warnings.warn(f"no batch has reached {_list_names(not_reached)}, so there are no statistics for it", stacklevel=3)
    dirty = [name for r in reached if r.not_finite > 0 for name in r.names]
    if dirty:
        count = sum(r.not_finite for r in reached)
        warnings.warn(
            f"{count} NaN or infinite values were left out, from the inputs of {_list_names(dirty)}", stacklevel=3
        )
    return {
        f"{name}.{what}": values
        for r in reached
        for name in r.names
        for what, values in (("absmax", r.absmax), ("min", r.low), ("max", r.high))
    }
