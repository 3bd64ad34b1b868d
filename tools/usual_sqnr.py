#!/usr/bin/env python3
"""Measures the SQNR of random weights in the codes of quantization schemes: the numbers of kUsual in
src/measure/usual_sqnr.cc, in its form.

    tools/usual_sqnr.py

Run by hand; nothing of the build needs it. Needs numpy. Every number is of four million weights, and another seed
changes it by less than 0.1 dB. Normal weights are what training starts from. Weights of a Laplace distribution have the
long tails of trained ones. Scales of four bits are those of the range, and those with the least error: which of them made a
checkpoint, it does not say.
"""

import numpy

WEIGHTS = 1 << 22
SHARES = {"s8": [32, 128, 512, 2048, 8192, 32768], "s4": [16, 32, 64, 128, 512, 2048, 8192], "e4m3": [32, 128, 1024]}


def float_grid(exponent_bits, mantissa_bits, bias, largest):
    """The numbers of a format that are not negative."""
    numbers = {0.0}
    for exponent in range(1 << exponent_bits):
        for mantissa in range(1 << mantissa_bits):
            part = mantissa / (1 << mantissa_bits)
            numbers.add(part * 2.0 ** (1 - bias) if exponent == 0 else (1 + part) * 2.0 ** (exponent - bias))
    return numpy.array(sorted(n for n in numbers if n <= largest))


E4M3 = float_grid(4, 3, 7, 448)
E2M1 = float_grid(2, 1, 1, 6)


def nearest(x, grid):
    return numpy.sign(x) * grid[numpy.searchsorted((grid[1:] + grid[:-1]) / 2, numpy.abs(x))]


def largest_of(rows):
    return numpy.abs(rows).max(axis=1, keepdims=True)


def symmetric(q_max):
    def values(rows, share=1.0):
        scale = share * largest_of(rows) / q_max
        return numpy.clip(numpy.rint(rows / scale), -q_max - 1, q_max) * scale
    return values


def asymmetric(q_max):
    def values(rows, share=1.0):
        low = share * numpy.minimum(rows.min(axis=1, keepdims=True), 0)
        scale = (share * numpy.maximum(rows.max(axis=1, keepdims=True), 0) - low) / q_max
        zero = numpy.rint(-low / scale)
        return (numpy.clip(numpy.rint(rows / scale) + zero, 0, q_max) - zero) * scale
    return values


def best(values, shares):
    """Of each row the share of its range with the least error."""
    def of(rows):
        made = [values(rows, share) for share in shares]
        least = numpy.argmin([((rows - m) ** 2).sum(axis=1) for m in made], axis=0)
        return numpy.choose(least[:, None], made)
    return of


SHARES_OF_RANGE = [(25 - i) / 25 for i in range(16)]


def fp8(rows):
    scale = largest_of(rows) / E4M3[-1]
    return nearest(rows / scale, E4M3) * scale


def nvfp4(rows, share=1.0):
    """Groups of 16, whose scales are e4m3 beside one of the tensor."""
    of_tensor = largest_of(rows).max() / (E2M1[-1] * E4M3[-1])
    scale = nearest(share * largest_of(rows) / E2M1[-1] / of_tensor, E4M3) * of_tensor
    return nearest(rows / scale, E2M1) * scale


def mxfp4(rows, share=1.0):
    """Groups of 32, whose scales are powers of two."""
    scale = share * 2.0 ** (numpy.floor(numpy.log2(largest_of(rows))) - 2)
    return nearest(rows / scale, E2M1) * scale


def sqnr_db(draw, values, share):
    rows = draw(size=(WEIGHTS // share, share))
    return 10 * numpy.log10((rows ** 2).sum() / ((rows - values(rows)) ** 2).sum())


def main():
    random = numpy.random.default_rng(1)
    for code, is_asymmetric, values, searched, shares in (
            ("s8", False, symmetric(127), [], SHARES["s8"]), ("s4", False, symmetric(7), SHARES_OF_RANGE, SHARES["s4"]),
            ("s4", True, asymmetric(15), SHARES_OF_RANGE, SHARES["s4"]), ("e4m3", False, fp8, [], SHARES["e4m3"]),
            ("e2m1", False, nvfp4, SHARES_OF_RANGE, [16]), ("e2m1", False, mxfp4, [0.5, 1.0, 2.0], [32])):
        ways = [values, best(values, searched)] if searched else [values]
        for share in shares:
            found = [sqnr_db(draw, way, share) for draw in (random.normal, random.laplace) for way in ways]
            print("    {ElementKind::%s, %s, %d, %.1f, %.1f}," % (code, str(is_asymmetric).lower(), share, min(found), max(found)))


if __name__ == "__main__":
    main()
