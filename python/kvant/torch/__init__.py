"""kvant for torch: fake quantization with gradients, quantized linear layers, calibration.

``fake_quantize``
    rounds to the quantization grid, with the straight-through gradient;
``FakeQuantize``
    the same as a module that finds its own scale, for quantization-aware training (QAT);
``QuantizedLinear``
    an ``nn.Linear`` with an int8 weight, which quantizes its input itself; ``quantize_model`` replaces every Linear of
    a model by one;
``calibrate``
    writes the input ranges of each Linear, as the file that ``kvant quantize --stats FILE --smooth`` reads.

All of it works on the CPU. Tensors in C order are not copied.

Quantization-aware training needs no special layers: fake-quantize the activation before a Linear, and its weight by a
parametrization. After training, remove the parametrization and quantize the Linear:

>>> import torch, kvant.torch
>>> from torch.nn.utils import parametrize
>>> net = torch.nn.Sequential(kvant.torch.FakeQuantize(scope="token"), torch.nn.Linear(8, 4))
>>> _ = parametrize.register_parametrization(net[1], "weight", kvant.torch.FakeQuantize(scope="channel", axis=0))
>>> x = torch.linspace(-1.0, 1.0, 16).reshape(2, 8)
>>> y = net(x)  # and train it
>>> _ = parametrize.remove_parametrizations(net[1], "weight", leave_parametrized=False)
>>> torch.allclose(kvant.torch.QuantizedLinear.from_linear(net[1])(x), y, atol=1e-6)
True
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("kvant.torch needs PyTorch, which is not installed; the rest of kvant does not") from error

from .autograd import fake_quantize
from .calibration import calibrate
from .linear import QuantizedLinear
from .model import quantize_model
from .training import FakeQuantize

__all__ = ["FakeQuantize", "QuantizedLinear", "calibrate", "fake_quantize", "quantize_model"]

# Pickles name a class by its module. They name the package, so that they stay valid when a class moves to another file.
for _name in __all__:
    globals()[_name].__module__ = __name__
