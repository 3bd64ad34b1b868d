"""Quantization-aware training of two layers at 4 bits, and the result in integer arithmetic. Needs torch.

A network with 32 hidden units tells two spiral arms apart. Rounding its weights to 4 bits (and activations to 8) after
the training costs accuracy; training on with the rounding in place brings most of it back. Runs for a few seconds.
"""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

import kvant
from kvant.torch import FakeQuantize, QuantizedLinear


def spirals(count, seed):
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, 2, (count,), generator=generator)
    turn = 15 * torch.rand(count, generator=generator).sqrt()
    angle, radius = turn + math.pi * arm, 2 * turn / 15
    noise = 0.02 * torch.randn(count, 2, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + noise, arm


def train(net, x, arm, steps, rate):
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(net(x), arm)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def report(what, net, x, arm):
    y = net(x)
    print(f"{what:<44} loss {cross_entropy(y, arm):.3f}  accuracy {(y.argmax(1) == arm).float().mean():.1%}")
    return y


def fake_quantized(net):
    """A copy with 4-bit weights, a scale for each output, and 8-bit activations, a scale for each row."""
    first, act, second = copy.deepcopy(net)
    for linear in (first, second):
        parametrize.register_parametrization(linear, "weight", FakeQuantize("int4", scope="channel", axis=0))
    return nn.Sequential(FakeQuantize("int8", scope="token"), first, act, FakeQuantize("int8", scope="token"), second)


def integer_layer(linear):
    """The 4-bit codes of a trained layer, for the int8 kernel."""
    parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
    codes, scale, _ = kvant.dynamic_range_quantize(linear.weight.detach(), q_min=-8, q_max=7)
    layer = QuantizedLinear(linear.in_features, linear.out_features)
    layer.load_state_dict({"weight": codes, "weight_scale": scale[:, None], "bias": linear.bias.detach()})
    return layer


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # tensors this small are not worth waking others
    (x, arm), test = spirals(500, 1), spirals(1000, 2)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    train(net, x, arm, 1500, 0.05)
    report("trained in float32", net, *test)
    quantized = fake_quantized(net)
    report("rounded to 4 bits afterwards", quantized, *test)
    train(quantized, x, arm, 1000, 0.02)
    y = report("trained on with 4 bits", quantized, *test)
    _, first, act, _, second = quantized
    z = report("the same in integers", nn.Sequential(integer_layer(first), act, integer_layer(second)), *test)
    off = (z - y).abs().amax(1)
    print(f"these two differ by {off.median():.1g} (median), {off.max():.1g} (most), of outputs to {y.abs().max():.2g}")


if __name__ == "__main__":
    main()
