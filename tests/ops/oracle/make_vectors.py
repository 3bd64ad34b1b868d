#!/usr/bin/env python3
"""Writes vectors of the element-wise operators, worked out in exact rational arithmetic, independent of kvant.

usage: make_vectors.py FILE   (the build of oracle_test does it)

The first line names the columns: what an element is given, then the operators, each a function of OPERATORS. Floating-
point numbers are the bits of their type in hexadecimal (scale: f64 for f64, otherwise f32), NaN is written as "nan".
Operators on codes are given the code that quantize makes. Codes of floating-point grids are their bits.
"""
import pathlib
import random
import sys
from fractions import Fraction

# mantissa bits (with the hidden one), exponent bits, storage bits
FORMATS = {"f32": (24, 8, 32), "f64": (53, 11, 64), "f16": (11, 5, 16), "bf16": (8, 8, 16)}

# Codes of integers, the narrowest first
INTEGERS = {"s2": (-2, 1), "u2": (0, 3), "s4": (-8, 7), "u4": (0, 15), "s8": (-128, 127), "u8": (0, 255),
            "s16": (-32768, 32767), "u16": (0, 65535)}
# Floating-point grids: exponent bits, mantissa bits, bias, what the last codes are
GRIDS = {"e4m3": (4, 3, 7, "nan"), "e5m2": (5, 2, 15, "infinity"),
         "e2m1": (2, 1, 1, "finite")}


class Grid:
    """All numbers of a floating-point grid, by their definition."""

    def __init__(self, name):
        exponent_bits, mantissa_bits, bias, self.top = GRIDS[name]
        self.sign_bit = 1 << (exponent_bits + mantissa_bits)
        self.numbers = []  # the finite magnitudes, by code
        for code in range(self.sign_bit):
            exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
            last = exponent == (1 << exponent_bits) - 1
            if last and (self.top == "infinity" or self.top == "nan" and mantissa == (1 << mantissa_bits) - 1):
                break
            steps = mantissa if exponent == 0 else mantissa + (1 << mantissa_bits)
            self.numbers.append(steps * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits))
        self.max = self.numbers[-1]

    def code(self, y, negative):
        """The nearest code, ties to even; beyond the last number the last code."""
        if y == "nan":
            return 0 if self.top == "finite" else self.sign_bit - 1
        sign = self.sign_bit if negative else 0
        if isinstance(y, str) or abs(y) >= self.max:
            return sign | (len(self.numbers) - 1)
        below = max(i for i, number in enumerate(self.numbers) if number <= abs(y))
        middle = (self.numbers[below] + self.numbers[below + 1]) / 2
        up = abs(y) > middle or abs(y) == middle and below % 2 == 1
        return sign | (below + up)

    def value(self, code):
        """Of a code that code() gave."""
        magnitude = code & (self.sign_bit - 1)
        if magnitude >= len(self.numbers):
            return "nan"
        return -self.numbers[magnitude] if code & self.sign_bit else self.numbers[magnitude]


def decode(bits, fmt):
    """A Fraction, or 'nan', 'inf', '-inf'; zeros as Fraction 0."""
    precision, exponent_bits, width = FORMATS[fmt]
    fraction_bits = precision - 1
    sign = -1 if bits >> (width - 1) else 1
    exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent == (1 << exponent_bits) - 1:
        return "nan" if fraction else ("inf" if sign > 0 else "-inf")
    if exponent == 0:
        return sign * Fraction(fraction) * Fraction(2) ** (1 - bias - fraction_bits)
    return sign * Fraction((1 << fraction_bits) + fraction) * Fraction(2) ** (exponent - bias - fraction_bits)


def rne(value):
    """The nearest integer, ties to even. Python's round on a Fraction does exactly that."""
    return round(value)


def encode(value, fmt):
    """The bits of the nearest number of the format, ties to even."""
    precision, exponent_bits, width = FORMATS[fmt]
    fraction_bits = precision - 1
    bias = (1 << (exponent_bits - 1)) - 1
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    sign_bit = 1 << (width - 1)
    if value == "nan":
        return "nan"
    if value == "-0":
        return sign_bit
    if value in ("inf", "-inf"):
        return infinity | (sign_bit if value == "-inf" else 0)
    if value == 0:
        return 0
    sign = sign_bit if value < 0 else 0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    steps = rne(magnitude / Fraction(2) ** (exponent - fraction_bits))
    if steps >= 1 << precision:
        steps, exponent = steps // 2, exponent + 1
    if steps < 1 << fraction_bits:  # denormal
        return sign | steps
    if exponent > bias:
        return sign | infinity
    return sign | ((exponent + bias) << fraction_bits) | (steps - (1 << fraction_bits))


def rounded(value, fmt):
    return value if isinstance(value, str) else decode(encode(value, fmt), fmt)


def quotient(x, scale, numerics, compute):
    """x / scale in the compute format: one rounding, or the rounded product with the rounded reciprocal."""
    if x == "nan":
        return "nan"
    if isinstance(x, str):
        return x
    if numerics == "exact":
        return rounded(x / scale, compute)
    return rounded(x * rounded(1 / scale, compute), compute)


class GridCase:
    """What one element is given on a floating-point grid, and the code that it becomes."""

    def __init__(self, fmt, numerics, grid, scale, x, negative, dy):
        self.compute = "f64" if fmt == "f64" else "f32"
        self.numerics, self.scale, self.dy = numerics, scale, dy
        self.y = quotient(x, scale, numerics, self.compute)
        self.code = grid.code(self.y, negative)
        self.value = grid.value(self.code)
        self.negative_zero = self.value == 0 and self.code != 0
        self.inside = not isinstance(self.y, str) and abs(self.y) <= grid.max


class Case:
    """The same on integers."""

    negative_zero = False

    def __init__(self, fmt, numerics, q_min, q_max, zp, scale, x, dy):
        self.compute = "f64" if fmt == "f64" else "f32"
        self.numerics, self.zp, self.scale, self.dy = numerics, zp, scale, dy
        self.y = y = quotient(x, scale, numerics, self.compute)
        if y == "nan":
            self.code, self.inside = min(max(zp, q_min), q_max), False
        elif isinstance(y, str):
            self.code, self.inside = (q_max if y == "inf" else q_min), False
        else:
            before = rne(y) + zp
            self.code, self.inside = min(max(before, q_min), q_max), q_min <= before <= q_max
        self.value = Fraction(self.code - zp)


def dequantize(c):
    if c.negative_zero:
        return "-0"
    return c.value if isinstance(c.value, str) else rounded(c.scale * c.value, c.compute)


# Names as in the table of operators. A code is an int, everything else a Fraction or a special value.
OPERATORS = {
    "quantize": lambda c: c.code,
    "dequantize": dequantize,
    "fake_quantize": lambda c: "nan" if c.y == "nan" else dequantize(c),
    "quantize_backward": lambda c: quotient(c.dy, c.scale, c.numerics, c.compute) if c.inside else Fraction(0),
    "dequantize_backward": lambda c: rounded(c.dy * c.scale, c.compute),
    "fake_quantize_backward": lambda c: c.dy if c.inside else Fraction(0),
}


def show(value, fmt):
    if isinstance(value, int):
        return str(value)
    bits = encode(value, fmt)
    return "nan" if bits == "nan" else f"{bits:0{FORMATS[fmt][2] // 4}x}"


def shown_case(given, fmt, scale_bits, x_bits, dy_bits):
    digits = FORMATS[fmt][2] // 4
    scale_digits = FORMATS[given.compute][2] // 4
    return (f"{scale_bits:0{scale_digits}x} {x_bits:0{digits}x} {dy_bits:0{digits}x} " +
            " ".join(show(of(given), fmt) for of in OPERATORS.values()))


def grid_lines(fmt, numerics, name):
    """Elements on a floating-point grid: ties, numbers of the grid, their neighbours, special and random bits."""
    grid = Grid(name)
    compute = "f64" if fmt == "f64" else "f32"
    precision, exponent_bits, width = FORMATS[fmt]
    infinity = ((1 << exponent_bits) - 1) << (precision - 1)
    sign_bit = 1 << (width - 1)
    lines = []
    for case in range(250):
        scale_bits = encode(random.choice([Fraction(1), Fraction(1, 2), Fraction(3, 10), Fraction(1, 448),
                                           Fraction(random.randrange(1, 10**6), 10**7), Fraction(2) ** -20]), compute)
        scale = decode(scale_bits, compute)
        below = random.randrange(len(grid.numbers) - 1)
        number, tie = grid.numbers[below], (grid.numbers[below] + grid.numbers[below + 1]) / 2
        kind = case % 5
        if kind < 3:
            x_bits = encode(scale * (tie if kind < 2 else random.choice([number, grid.max])), fmt)
            x_bits = max(0, x_bits + random.choice([-1, 0, 0, 1])) ^ random.choice([0, sign_bit])
        elif kind == 3:
            x_bits = random.choice([0, 1, infinity, infinity - 1, infinity | 1 << (precision - 2)])
            x_bits ^= random.choice([0, sign_bit])
        else:
            x_bits = random.getrandbits(width)
        dy_bits = encode(Fraction(random.randrange(-10**6, 10**6), 10**4), fmt)
        given = GridCase(fmt, numerics, grid, scale, decode(x_bits, fmt), bool(x_bits & sign_bit), decode(dy_bits, fmt))
        lines.append(f"{fmt} {numerics} {name} 0 0 0 " + shown_case(given, fmt, scale_bits, x_bits, dy_bits))
    return lines


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    random.seed(20260101)
    lines = ["type numerics code q_min q_max zero_point scale x dy " + " ".join(OPERATORS)]
    ranges = [(-128, 127), (0, 255), (-8, 7), (0, 15), (-127, 127), (-100, 50), (3, 3), (-32768, 32767), (0, 65535),
              (-2, 1), (0, 3)]
    for fmt in FORMATS:
        compute = "f64" if fmt == "f64" else "f32"
        for numerics in ("exact", "reciprocal"):
            for case in range(700):
                q_min, q_max = random.choice(ranges)
                zp = random.choice([0, 0, 1, 3, 7, 13, 127, -5, -77, 129, 1001, -40001])
                scale_value = random.choice([Fraction(1), Fraction(1, 2), Fraction(3, 10), Fraction(1, 127),
                                             Fraction(random.randrange(1, 10**6), 10**7), Fraction(2) ** -20])
                scale_bits = encode(scale_value, compute)
                scale = decode(scale_bits, compute)
                kind = case % 7
                if kind == 0:  # a tie, exact or nearly so
                    x = scale * (random.randrange(q_min - zp - 3, q_max - zp + 4) + Fraction(1, 2))
                elif kind == 1:  # the ends of the range
                    x = scale * (random.choice([q_min, q_max]) - zp + random.choice([0, Fraction(1, 2), Fraction(-1, 2)]))
                elif kind == 2:  # anything in and around the range
                    x = scale * Fraction(random.randrange(-400 * 1000, 400 * 1000), 1000)
                elif kind == 3:  # a grid point
                    x = scale * (random.randrange(q_min, q_max + 1) - zp)
                elif kind == 4:  # special bits
                    x = None
                    width, precision = FORMATS[fmt][2], FORMATS[fmt][0]
                    infinity = ((1 << FORMATS[fmt][1]) - 1) << (precision - 1)
                    x_bits = random.choice([0, 1 << (width - 1), 1, (1 << (width - 1)) | 1, infinity, infinity - 1,
                                            infinity | 1 << (width - 1), (infinity - 1) | 1 << (width - 1),
                                            infinity | 1 << (precision - 2)])
                else:  # random bits
                    x = None
                    x_bits = random.getrandbits(FORMATS[fmt][2])
                if x is not None:
                    x_bits = encode(x, fmt)
                    if kind == 0:  # and its neighbours
                        x_bits += random.choice([-1, 0, 0, 1])
                        x_bits &= (1 << FORMATS[fmt][2]) - 1
                dy_bits = encode(Fraction(random.randrange(-10**6, 10**6), 10**4), fmt)
                x, dy = decode(x_bits, fmt), decode(dy_bits, fmt)
                given = Case(fmt, numerics, q_min, q_max, zp, scale, x, dy)
                code = next(name for name, limits in INTEGERS.items() if limits[0] <= q_min and q_max <= limits[1])
                lines.append(f"{fmt} {numerics} {code} {q_min} {q_max} {zp} " +
                             shown_case(given, fmt, scale_bits, x_bits, dy_bits))
            for name in GRIDS:
                lines += grid_lines(fmt, numerics, name)
    pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
