"""Checkpoints that others quantized, in their own layouts, with the standard library only: random codes and scales, and
the values that they stand for. Nothing here rounds but where the layout's own readers do."""

import random

from checkpoints import Tensor, round_f32, round_to
from reference import E2M1, E4M3


def product(a, b):
    return round_f32(a * b)


class Dialect:
    """Turns the Linears of a model into its codes. `values`: {tensor: (shape, values in f32)} of what they stand for."""

    method = ""

    def __init__(self, seed=7, **facts):
        self.random = random.Random(seed)
        self.facts = facts
        self.values = {}

    def config(self):
        return {"quant_method": self.method, **self.facts}

    def of(self, model):
        """The tensors of the checkpoint, and its config.json."""
        tensors = {}
        for name, tensor in model.tensors.items():
            module = name.removesuffix(".weight")
            if module in model.linears and name != module:
                rows, columns = tensor.shape
                made, values = self.layer(module, rows, columns)
                tensors.update(made)
                self.values[name] = ([rows, columns], values)
            else:
                tensors[name] = tensor
        return tensors, {**model.config, "quantization_config": self.config()}

    def scale(self):
        return self.random.uniform(0.001, 0.01)

    def codes(self, count, most):
        return [self.random.randrange(most) for _ in range(count)]

    def e4m3(self, count):
        """Codes but NaN."""
        return [self.random.randrange(127) | self.random.choice((0, 128)) for _ in range(count)]


class DeepSeek(Dialect):
    method = "fp8"

    def __init__(self, rows=128, columns=128, **more):
        super().__init__(activation_scheme="dynamic", fmt="e4m3", weight_block_size=[rows, columns], **more)
        self.block = (rows, columns)

    def layer(self, module, rows, columns):
        down, across = -(-rows // self.block[0]), -(-columns // self.block[1])
        scales = [round_f32(self.scale()) for _ in range(down * across)]
        codes = self.e4m3(rows * columns)
        values = [product(scales[r // self.block[0] * across + c // self.block[1]], E4M3.number(codes[r * columns + c]))
                  for r in range(rows) for c in range(columns)]
        return {module + ".weight": Tensor("F8_E4M3", [rows, columns], bytes(codes)),
                module + ".weight_scale_inv": Tensor.of(scales, "F32", [down, across])}, values


class ModelOptFp8(Dialect):
    method = "modelopt"

    def __init__(self, by_row=False, inputs=True, **more):
        super().__init__(quant_algo="FP8_PER_CHANNEL_PER_TOKEN" if by_row else "FP8", **more)
        self.by_row, self.inputs = by_row, inputs and not by_row

    def layer(self, module, rows, columns):
        scales = [round_f32(self.scale()) for _ in range(rows if self.by_row else 1)]
        codes = self.e4m3(rows * columns)
        values = [product(scales[i // columns if self.by_row else 0], E4M3.number(code)) for i, code in enumerate(codes)]
        tensors = {module + ".weight": Tensor("F8_E4M3", [rows, columns], bytes(codes)),
                   module + ".weight_scale": Tensor.of(scales, "F32", [rows] if self.by_row else [])}
        if self.inputs:
            tensors[module + ".input_scale"] = Tensor.of([0.03125], "F32", [])
        return tensors, values


class ModelOptNvfp4(Dialect):
    method = "modelopt"

    def __init__(self, exact=False, inputs=True, **more):
        super().__init__(quant_algo="NVFP4", group_size=16, **more)
        self.exact, self.inputs = exact, inputs

    def layer(self, module, rows, columns):
        groups = columns // 16
        codes = self.codes(rows * columns, 16)
        scales = [self.random.randrange(1, 127) for _ in range(rows * groups)]
        total = 2.0 ** -9 if self.exact else round_f32(self.random.uniform(0.001, 0.002))
        values = [product(product(E4M3.number(scales[i // 16]), total), E2M1.number(code)) for i, code in enumerate(codes)]
        packed = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))
        tensors = {module + ".weight": Tensor("U8", [rows, columns // 2], packed),
                   module + ".weight_scale": Tensor("F8_E4M3", [rows, groups], bytes(scales)),
                   module + ".weight_scale_2": Tensor.of([total], "F32", [])}
        if self.inputs:
            tensors[module + ".input_scale"] = Tensor.of([2.0 ** -6], "F32", [])
        return tensors, values


def pack_words(codes, bits):
    return sum(code << bits * i for i, code in enumerate(codes))


def as_i32(words):
    return [word - (1 << 32) if word >= 1 << 31 else word for word in words]


class Gptq(Dialect):
    method = "gptq"

    def __init__(self, bits=4, group_size=16, sym=True, desc_act=False, checkpoint_format="gptq", **more):
        super().__init__(bits=bits, group_size=group_size, sym=sym, desc_act=desc_act, checkpoint_format=checkpoint_format,
                         **more)
        self.bits, self.sym, self.desc_act = bits, sym, desc_act
        self.group_size = group_size
        self.less = 1 if checkpoint_format == "gptq" else 0

    def layer(self, module, rows, columns):
        per_word, size = 32 // self.bits, columns if self.group_size == -1 else self.group_size
        groups = columns // size
        group_of = [c // size for c in range(columns)]
        if self.desc_act:
            self.random.shuffle(group_of)
        codes = [self.codes(columns, 1 << self.bits) for _ in range(rows)]
        scales = [[round_to(self.scale(), "F16") for _ in range(rows)] for _ in range(groups)]
        middle = 1 << self.bits - 1
        zeros = [[middle if self.sym else self.random.randrange(1, 1 << self.bits) for _ in range(rows)]
                 for _ in range(groups)]
        values = [product(scales[group_of[c]][r], codes[r][c] - zeros[group_of[c]][r])
                  for r in range(rows) for c in range(columns)]
        words = [pack_words([codes[r][w * per_word + i] for i in range(per_word)], self.bits)
                 for w in range(columns // per_word) for r in range(rows)]
        packed = [pack_words([zeros[g][w * per_word + i] - self.less for i in range(per_word)], self.bits)
                  for g in range(groups) for w in range(rows // per_word)]
        return {module + ".qweight": Tensor.of(as_i32(words), "I32", [columns // per_word, rows]),
                module + ".qzeros": Tensor.of(as_i32(packed), "I32", [groups, rows // per_word]),
                module + ".scales": Tensor.of([s for line in scales for s in line], "F16", [groups, rows]),
                module + ".g_idx": Tensor.of(group_of, "I32", [columns])}, values


class Awq(Dialect):
    method = "awq"
    ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # what nibble i of a word holds

    def __init__(self, group_size=16, **more):
        super().__init__(bits=4, group_size=group_size, zero_point=True, version="gemm", **more)
        self.group_size = group_size

    def lines(self, numbers, rows):
        return as_i32(pack_words([line[w + i] for i in self.ORDER], 4) for line in numbers for w in range(0, rows, 8))

    def layer(self, module, rows, columns):
        groups = columns // self.group_size
        codes = [self.codes(rows, 16) for _ in range(columns)]
        zeros = [self.codes(rows, 16) for _ in range(groups)]
        scales = [[round_to(self.scale(), "F16") for _ in range(rows)] for _ in range(groups)]
        values = [product(scales[c // self.group_size][r], codes[c][r] - zeros[c // self.group_size][r])
                  for r in range(rows) for c in range(columns)]
        return {module + ".qweight": Tensor.of(self.lines(codes, rows), "I32", [columns, rows // 8]),
                module + ".qzeros": Tensor.of(self.lines(zeros, rows), "I32", [groups, rows // 8]),
                module + ".scales": Tensor.of([s for line in scales for s in line], "F16", [groups, rows])}, values


class GptOss(Dialect):
    """Its stacks of experts have names of their own; all else of the model is plain."""
    method = "mxfp4"

    def of(self, model):
        tensors = dict(model.tensors)
        for name, (experts, out, inputs) in {"model.layers.0.mlp.experts.gate_up_proj": (3, 20, 64),
                                             "model.layers.0.mlp.experts.down_proj": (3, 64, 96)}.items():
            groups = inputs // 32
            codes = self.codes(experts * out * inputs, 16)
            scales = [self.random.randrange(110, 130) for _ in range(experts * out * groups)]
            tensors[name + "_blocks"] = Tensor("U8", [experts, out, groups, 16],
                                               bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2)))
            tensors[name + "_scales"] = Tensor("U8", [experts, out, groups], bytes(scales))
            tensors[name + "_bias"] = Tensor.of([0.0] * (experts * out), "BF16", [experts, out])
            stored = [product(2.0 ** (scales[i // 32] - 127), E2M1.number(code)) for i, code in enumerate(codes)]
            # transformers has the matrices turned.
            self.values[name] = ([experts, inputs, out], [stored[(e * out + o) * inputs + i] for e in range(experts)
                                                          for i in range(inputs) for o in range(out)])
        return tensors, {**model.config, "quantization_config": self.config()}


# Every layout, by a name for people; `exact`: whether compressed-tensors holds all values.
ALL = {"deepseek": DeepSeek(), "deepseek, small blocks": DeepSeek(16, 8), "modelopt fp8": ModelOptFp8(),
       "modelopt fp8, weights": ModelOptFp8(inputs=False), "modelopt fp8, rows": ModelOptFp8(by_row=True),
       "modelopt nvfp4": ModelOptNvfp4(), "modelopt nvfp4, exact": ModelOptNvfp4(exact=True),
       "modelopt nvfp4, weights": ModelOptNvfp4(inputs=False), "gptq": Gptq(), "gptq, zero points": Gptq(sym=False),
       "gptq, v2": Gptq(sym=False, checkpoint_format="gptq_v2"), "gptq, channels": Gptq(group_size=-1),
       "gptq, 8 bits": Gptq(bits=8, sym=False), "gptq, act-order": Gptq(sym=False, desc_act=True), "awq": Awq(),
       "gpt-oss": GptOss()}
