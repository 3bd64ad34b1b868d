"""``calibrate``: statistics of what each Linear reads, for ``kvant quantize --stats``."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch
from torch import Tensor, nn

from .ranges import extend_range
from .safetensors import write_safetensors
from .tensors import plain


class _Padding:
    """Which rows of the batch that runs are tokens; the others are padding."""

    def __init__(self) -> None:
        self.mask: Optional[Tensor] = None  # [sequences, tokens]; None: every row counts

    def begin(self, batch: Any) -> None:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if mask is None:
            self.mask = None
            return
        if not isinstance(mask, Tensor) or mask.dim() != 2:
            found = f"of shape {list(mask.shape)}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
            raise ValueError(f"attention_mask must be a tensor [sequences, tokens] of 1 and 0 for padding, not {found}")
        real = plain(mask).to("cpu") != 0
        self.mask = None if bool(real.all()) else real

    def without(self, x: Tensor, rows: Tensor, name: str) -> Tensor:
        """The rows, [n, in], of the input x without those of padding."""
        if self.mask is None:
            return rows
        if x.shape[:-1] == self.mask.shape or rows.shape[0] == self.mask.numel():
            return rows[self.mask.reshape(-1)]
        if rows.shape[0] == self.mask.shape[0]:  # one for each sequence, as poolers read
            return rows
        raise ValueError(
            f"the input of {name} has {rows.shape[0]} rows and attention_mask is {list(self.mask.shape)}, so which rows "
            f"are padding is not known: give batches without padding"
        )


class _InputStatistics:
    """What is kept of every input channel of one module, over all calls."""

    def __init__(self, names: List[str], in_features: int, padding: _Padding) -> None:
        self.names = names
        self.padding = padding
        self.low = torch.full((in_features,), float("inf"))
        self.high = torch.full((in_features,), float("-inf"))
        self.absmax = torch.zeros(in_features)
        self.squares = torch.zeros(in_features, dtype=torch.float64)
        self.finite = torch.zeros(in_features, dtype=torch.int64)
        self.rows = 0
        self.not_finite = 0

    def observe(self, module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        x = args[0] if args else kwargs["input"]
        # float64 becomes float32 here, not at the end. Rounding keeps the order of values, so the result is the same.
        x = plain(x).to("cpu", torch.float32 if x.dtype == torch.float64 else x.dtype)
        x = self.padding.without(x, x.reshape(-1, self.low.numel()), self.names[0])
        finite = torch.isfinite(x)
        self.rows += x.shape[0]
        self.finite += finite.sum(0)
        self.not_finite += x.numel() - int(finite.sum())
        self.squares += torch.where(finite, x, torch.zeros((), dtype=x.dtype)).double().square().sum(0)
        extend_range(x, "channel", 1, self.low, self.high, self.absmax)

    def tensors(self) -> Dict[str, Tensor]:
        return {
            "absmax": self.absmax,
            "min": self.low,
            "max": self.high,
            "mean_square": (self.squares / self.finite).float(),
            "count": torch.tensor([self.rows]),
        }


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
    """Runs ``model`` on ``batches`` and writes statistics of the input of each nn.Linear. Returns the path.

    For each Linear and each input channel j, over all rows x of all batches::

        absmax[j] = max |x[j]|      min[j] = min x[j]      max[j] = max x[j]      mean_square[j] = mean of x[j]²

    ``kvant quantize --stats FILE`` reads this file. It is a safetensors file with ``<name>.absmax``, ``<name>.min``,
    ``<name>.max`` and ``<name>.mean_square``, float32 [in_features], and ``<name>.count``, int64 [1], the number of rows,
    for the names of ``model.named_modules()``. The names must be those of the checkpoint, so give the model that was
    loaded from it, not a wrapper around it. The file is written at the end, and is either complete or absent.

    batches: tensors, tuples or lists (positional arguments) or dicts (keyword arguments of the model).
    modules: which Linears, by name or as a function of name and module; by default all.

    Padding does not count: where a batch is a dict with an ``attention_mask``, [sequences, tokens], rows of tokens whose
    mask is 0 are left out. A batch of another kind has no mask, and all its rows count. A Linear that reads some rows
    only, as experts do, cannot be masked: that is an error, so give batches without padding.

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
    padding = _Padding()
    seen = {linear: _InputStatistics(names, linear.in_features, padding) for linear, names in chosen.items()}
    hooks = []
    ran = 0
    try:
        for linear, inputs in seen.items():
            hooks.append(linear.register_forward_pre_hook(inputs.observe, with_kwargs=True))
        with _evaluating(model):
            for batch in batches:
                padding.begin(batch)
                _call(model, batch)
                ran += 1
    finally:
        for hook in hooks:
            hook.remove()
    if ran == 0:
        raise ValueError("there are no batches to calibrate with")
    write_safetensors(path, _statistics(list(seen.values())))
    return path


def _statistics(seen: Sequence[_InputStatistics]) -> Dict[str, Tensor]:
    reached = [r for r in seen if r.rows > 0]
    if not reached:
        raise ValueError("no batch has reached any of the modules")
    for inputs in reached:
        empty = torch.nonzero(torch.isinf(inputs.low)).reshape(-1).tolist()
        if empty:
            raise ValueError(
                f"the input of {inputs.names[0]} has no finite value in channel {empty[0]} ({len(empty)} such channels)"
            )
    not_reached = [name for r in seen if r.rows == 0 for name in r.names]
    if not_reached:
        warnings.warn(f"no batch has reached {_list_names(not_reached)}, so there are no statistics for it", stacklevel=3)
    dirty = [name for r in reached if r.not_finite > 0 for name in r.names]
    if dirty:
        count = sum(r.not_finite for r in reached)
        warnings.warn(
            f"{count} NaN or infinite values were left out, from the inputs of {_list_names(dirty)}", stacklevel=3
        )
    return {
        f"{name}.{what}": values for r in reached for name in r.names for what, values in r.tensors().items()
    }
