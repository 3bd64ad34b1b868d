"""Every scheme of `kvant quantize` on a tiny model of every family, beside transformers and compressed-tensors.

    python tests/interop/checkpoint_matrix.py build/release/kvant [--write docs/interop.md] [--only FAMILY/SCHEME]
                                              [--vllm build/vllm/bin/python]

Needs torch, transformers and compressed-tensors; with --vllm also shows vLLM what it made (vllm_schemes.py). Prints a line
for each family and scheme and, with --write, makes the page that explains the letters. Ends with 1 if anything fails that
LIMITS does not explain.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import compressed_tensors
import torch
import transformers as t
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.modeling.kvcache import initialize_hooked_kv_cache, register_key_hook, register_value_hook
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.utils import match_name
from safetensors.torch import load_file, save_file

import sections

# Every part that loaders fuse has a multiple of 128 rows, and every input a multiple of 128 channels: all groups and
# blocks fit.
SIZES = dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=2, vocab_size=512, max_position_embeddings=128)
GROUPED = dict(SIZES, intermediate_size=384, num_key_value_heads=1)
HEADS = dict(GROUPED, head_dim=128)
LATENT = dict(SIZES, intermediate_size=384, num_key_value_heads=2, q_lora_rank=128, kv_lora_rank=128,
              qk_rope_head_dim=128, qk_nope_head_dim=128, v_head_dim=128)
FEW = dict(num_experts_per_tok=2, moe_intermediate_size=128)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)

FAMILIES = {
    "Llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**GROUPED)),
    "Qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**GROUPED)),
    "Qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**HEADS)),
    "Mixtral": lambda: t.MixtralForCausalLM(t.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "Qwen3-MoE": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**HEADS, **FEW, num_experts=4, mlp_only_layers=[1])),
    "Llama-4": lambda: t.Llama4ForCausalLM(
        t.Llama4TextConfig(**HEADS, intermediate_size_mlp=384, num_local_experts=4, num_experts_per_tok=1)),
    "gpt-oss": lambda: t.GptOssForCausalLM(
        t.GptOssConfig(**HEADS, num_local_experts=4, num_experts_per_tok=2, rope_parameters=YARN)),
    "DeepSeek-V3": lambda: t.DeepseekV3ForCausalLM(
        t.DeepseekV3Config(**LATENT, **FEW, n_routed_experts=4, n_group=2, topk_group=1, n_shared_experts=1,
                           first_k_dense_replace=1)),
    "OPT": lambda: t.OPTForCausalLM(t.OPTConfig(**SIZES, ffn_dim=384, word_embed_proj_dim=256)),
    "BERT": lambda: t.BertModel(t.BertConfig(**SIZES, intermediate_size=384)),
    # Scales and values that are not rounded to bf16.
    "Llama, f32": lambda: t.LlamaForCausalLM(t.LlamaConfig(**GROUPED)),
}

# Some models of vLLM have their own names for experts, which Qwen3-MoE does not need.
VLLM_FAMILIES = ("Llama", "Qwen3-MoE")

# Schemes that also stand in a row with --kv-fp8.
WITH_CACHE = ("fp8", "w4a16")
CACHE_SCALE = re.compile(r".*\.self_attn\.[kv]_scale")

PARTS = {"weight": "codes", "weight_packed": "codes", "weight_scale": "scales", "weight_zero_point": "zero points"}


class Refused(Exception):
    """The tool refuses a scheme for a family in words, as it should."""


class Differs(Exception):
    """What nothing explains."""


# What others cannot do, by name: a condition without which it would be a fault of ours, and the sentence for the page.
# `case` has family, experts (are some quantized?), cache (scales of keys and values?), scheme (QuantizationScheme) and
# format.
LIMITS = {
    "activations": (
        lambda case: case.scheme.input_activations is not None and case.scheme.input_activations.dynamic is not True,
        "transformers loads the weights, and reports the stored scales of activations, of which it has no use, as unexpected "
        "keys: with `dequantize=True` those of every module, else those of experts."),
    "cache": (
        lambda case: case.cache,
        "With `dequantize=True` transformers has no place for the scales of keys and values, and reports them as unexpected "
        "keys."),
    "codes with zero points": (
        lambda case: not case.scheme.weights.symmetric,
        "With zero points compressed-tensors rounds the width of a range to f32 before it divides, and takes the zero point "
        "from the scale before that is rounded for the file. In f64 its scales are kvant's; its zero points are at most 1 off, "
        "and so are the codes that it makes with kvant's scales and zero points. "
        "[Below](#where-compressed-tensors-makes-other-codes) is how many differ."),
    "zero points": (
        lambda case: not case.scheme.weights.symmetric and case.format == "pack-quantized",
        "compressed-tensors prepares zero points of the unpacked shape for a compressed model, so that packed ones, its own "
        "too, do not fit; `dequantize=True` loads them."),
    "experts": (
        lambda case: case.experts and (
            not case.scheme.weights.symmetric or case.format == "int-quantized"
            or (case.format, case.scheme.weights.strategy) == ("float-quantized", "block") or case.format == "mxfp8-quantized"),
        "transformers stacks experts of FP8 with a scale for a channel or a tensor, and packed ones without zero points; it "
        "fails on others."),
    "global scales": (
        lambda case: case.experts and case.format == "nvfp4-pack-quantized",
        "transformers leaves out the global scale when it stacks experts of NVFP4: it loads them **with wrong values and "
        "without a word**. All other weights are right."),
    "stacks": (
        lambda case: case.experts and case.family == "Llama-4",
        "transformers wants the experts of Llama-4 in stacks and does not make them from modules. Checked in the files only."),
    "bf16": (
        lambda case: case.family.endswith("f32") and case.format.startswith(("mx", "nv")),
        "compressed-tensors decompresses MX and NVFP4 to bf16 whatever the model is, and a model in f32 then fails in its "
        "first step; `dequantize=True` works."),
}


# ---- The tool ----

class Tool:
    """kvant as a program."""

    def __init__(self, binary):
        self.binary = str(Path(binary).resolve())

    def run(self, *arguments):
        return subprocess.run([self.binary, "-q", *map(str, arguments)], capture_output=True, text=True)

    def must(self, *arguments):
        run = self.run(*arguments)
        if run.returncode:
            raise Differs(f"kvant {arguments[0]} failed: {run.stderr.strip()}")
        return run.stdout

    def listed(self, model, words, *arguments):
        """Names that a refusal lists: the tool's own table, which no list here has to follow."""
        text = self.run("quantize", model, "--dry-run", *arguments).stderr
        found = re.search(words, text)
        if not found:
            sys.exit(f"checkpoint_matrix.py: no list of schemes in: {text}")
        return found.group(1).split(", ")

    def columns(self, model):
        """Options of every scheme, and of its asymmetric form where there is one."""
        names = self.listed(model, r"must be one of ([\w, -]+)", "--scheme", "?")
        asymmetric = self.listed(model, r"accept; ([\w, -]+) have one", "--scheme", names[-1], "--asymmetric")
        for name in names:
            yield name, ["--scheme", name]
            if name in asymmetric:
                yield f"{name} asymmetric", ["--scheme", name, "--asymmetric"]
            if name in WITH_CACHE:
                yield f"{name} --kv-fp8", ["--scheme", name, "--kv-fp8"]

    def quantize(self, model, output, options):
        run = self.run("quantize", model, "-o", output, *options)
        if run.returncode == 1 and " is an expert and would be " in run.stderr:
            raise Refused(re.search(r", but (.*?)(: take another scheme|$)", run.stderr.strip()).group(1))
        known = re.search(r"--kv-fp8: model_type '\w+': (loaders are known to .*)", run.stderr)
        if run.returncode == 1 and known:
            raise Refused(known.group(1).strip())
        if run.returncode:
            raise Differs(f"kvant quantize failed: {run.stderr.strip()}")


def tensors_of(folder):
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


# ---- Models and statistics ----

def make(family, folder):
    torch.manual_seed(1)
    model = FAMILIES[family]().eval()
    model = model.to(torch.float32 if family.endswith("f32") else torch.bfloat16)
    model.save_pretrained(folder)
    return model


def hooked_statistics(model, ids, names):
    """For families that kvant does not run: the ranges of what every Linear reads. Experts that transformers keeps in
    stacks are no modules; theirs are random, because only their way into the file matters here."""
    seen, handles = {}, []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            def look(_, inputs, name=name):
                x = inputs[0].detach().float().flatten(0, -2)
                low, high = x.amin(0), x.amax(0)
                if name in seen:
                    low, high = torch.minimum(low, seen[name][0]), torch.maximum(high, seen[name][1])
                seen[name] = low, high
            handles.append(module.register_forward_pre_hook(look))
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    generator = torch.Generator().manual_seed(2)
    statistics = {}
    for name, width in names.items():
        high = torch.rand(width, generator=generator) + 1
        low, high = seen.get(name, (-high, high))
        statistics |= {f"{name}.absmax": torch.maximum(-low, high).abs(), f"{name}.min": low, f"{name}.max": high}
    return statistics


def calibration_ids():
    return torch.randint(0, SIZES["vocab_size"], (4, 32), generator=torch.Generator().manual_seed(3))


def collect_statistics(tool, model, folder, file, scratch):
    ids = calibration_ids()
    tokens = Path(scratch) / "ids.txt"
    tokens.write_text(" ".join(map(str, ids.flatten().tolist())))
    run = tool.run("calibrate", folder, "--tokens", tokens, "--length", ids.shape[1], "-o", file)
    if run.returncode == 0:
        return "kvant"
    if "kvant cannot run a model of model_type" not in run.stderr:
        raise Differs(f"kvant calibrate failed: {run.stderr.strip()}")
    # The modules that need statistics are those that a scheme without them writes.
    plain = Path(scratch) / "plain"
    tool.must("quantize", folder, "-o", plain, "--scheme", "fp8")
    names = {name.removesuffix(".weight"): value.shape[1] for name, value in tensors_of(plain).items()
             if value.dtype == torch.float8_e4m3fn}
    save_file(hooked_statistics(model, ids, names), file)
    return "torch"


# ---- Modules of a quantized checkpoint, as compressed-tensors sees them ----

class Quantized:
    def __init__(self, folder):
        described = json.loads((Path(folder) / "config.json").read_text())["quantization_config"]
        self.config = QuantizationConfig.model_validate(described)
        [self.scheme] = self.config.config_groups.values()
        self.compressor = BaseCompressor.get_value_from_registry(self.scheme.format or self.config.format)
        tensors = tensors_of(folder)
        self.modules = {name.removesuffix(".weight_scale"): {} for name in tensors if name.endswith(".weight_scale")}
        for name, value in tensors.items():
            module, _, part = name.rpartition(".")
            if module in self.modules:
                self.modules[module][part] = value
        if not self.modules:
            raise Differs("no quantized module in the output")
        self.experts = any(".experts." in module for module in self.modules)
        for module in self.modules:
            if any(match_name(module, pattern) for pattern in self.config.ignore):
                raise Differs(f"{module} is quantized, and config.json ignores it")


def same_bits(one, other):
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def check_files(quantized, values):
    """compressed-tensors' own decompression of each module equals kvant's values. It multiplies in the dtype of the
    scales, and in bf16 for FP4 and MX whatever the model is; a code has at most 8 bits, so a product is rounded once,
    and kvant's value in f32, rounded to that dtype, must have its bits."""
    for module, tensors in quantized.modules.items():
        theirs = quantized.compressor.decompress(dict(tensors), quantized.scheme)["weight"]
        ours = values[f"{module}.weight"]
        if not same_bits(theirs, ours.to(theirs.dtype)):
            count = int((theirs != ours.to(theirs.dtype)).sum())
            raise Differs(f"{module}: {count} of {ours.numel()} values differ from compressed-tensors'")


def original_weight(original, module):
    """The weight that became the module: its own, or its part of a stack of experts, which Llama-4 keeps turned."""
    if f"{module}.weight" in original:
        return original[f"{module}.weight"]
    stem, expert, part = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)", module).groups()
    stack = original[f"{stem}.{part if part == 'down_proj' else 'gate_up_proj'}"][int(expert)].T
    return stack if part == "down_proj" else stack.chunk(2)[part == "up_proj"]


def ranges(weight, args):
    """min and max of what shares a scale, in the shape that compressed-tensors gives to scales."""
    if args.strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if args.strategy == "block":
        rows, columns = args.block_structure
        parts = weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
        return parts.amin((1, 3)), parts.amax((1, 3))
    groups = weight.unflatten(1, (-1, args.group_size))
    return groups.amin(2), groups.amax(2)


def made_by_compressed_tensors(quantized, weight, low, high, given, stored):
    """The tensors of a module from its weight, in the arithmetic of the weight's dtype, with the scale as it is stored."""
    scale, zero_point = calculate_qparams(low, high, quantized.scheme.weights, given)
    if stored.dtype in (torch.bfloat16, torch.float16, torch.float32):
        scale = scale.to(stored.dtype).to(weight.dtype)
    state = {"weight": weight, "weight_scale": scale}
    if given is not None:
        state["weight_global_scale"] = given
    if not quantized.scheme.weights.symmetric:
        state["weight_zero_point"] = zero_point
    return quantized.compressor.compress(state, quantized.scheme)


def elements(name, value, tensors, args):
    """Codes and zero points one by one, whatever they are packed in."""
    rows, groups = tensors["weight_scale"].shape[0], tensors["weight_scale"].shape[-1]
    if name == "weight_zero_point":
        return unpack_from_int32(value, args.num_bits, torch.Size((rows, groups)), packed_dim=0)
    if name == "weight_packed" and args.type == "int":
        return unpack_from_int32(value, args.num_bits, torch.Size(tensors["weight_shape"].tolist()))
    if name == "weight_packed":
        return torch.stack((value & 15, value >> 4), -1)
    return value.view(torch.uint8) if value.itemsize == 1 else value


def check_zero_points(module, tensors, weight, low, high, quantized):
    """What must hold where byte for byte is too much to ask; LIMITS says why."""
    args = quantized.scheme.weights
    scale, _ = calculate_qparams(low.double(), high.double(), args)
    stored = tensors["weight_scale"]
    if not same_bits(scale.float().to(stored.dtype), stored):
        raise Differs(f"{module}: scales are not those of compressed-tensors in f64")
    _, zero_point = calculate_qparams(low.float(), high.float(), args)
    ours = elements("weight_zero_point", tensors["weight_zero_point"], tensors, args)
    off = int((zero_point.int() - ours.int()).abs().max())
    if off > (stored.dtype != torch.float32):
        raise Differs(f"{module}: a zero point is {off} off compressed-tensors'")
    state = {"weight": weight.float(), "weight_scale": stored.float(), "weight_zero_point": ours}
    made = quantized.compressor.compress(state, quantized.scheme)["weight_packed"]
    codes = [elements("weight_packed", value, tensors, args).int() for value in (made, tensors["weight_packed"])]
    if int((codes[0] - codes[1]).abs().max()) > 1:
        raise Differs(f"{module}: a code is more than 1 off compressed-tensors'")


def check_codes(quantized, original):
    """Scales and codes that compressed-tensors makes from the original weights, in f32, equal kvant's, byte for byte, but
    for weights with zero points. Returns how many of compressed-tensors' scales, zero points and codes are others, and of
    how many: in f32 of weights with zero points, in bf16 of all weights in bf16."""
    args, others = quantized.scheme.weights, Counter()
    weights = {module: original_weight(original, module) for module in quantized.modules}
    for module, tensors in quantized.modules.items():
        weight, common, given = weights[module], [weights[module]], None
        shared = {"tensor": "weight_scale", "tensor_group": "weight_global_scale"}.get(args.strategy)
        if shared:  # Neighbours that loaders fuse have one scale, that of the largest of them.
            parent = module.rpartition(".")[0]
            common = [weights[other] for other in quantized.modules if other.rpartition(".")[0] == parent
                      and same_bits(quantized.modules[other][shared], tensors[shared])]
        low, high = min(w.min() for w in common).reshape(1), max(w.max() for w in common).reshape(1)
        if args.strategy == "tensor_group":
            given, theirs = tensors["weight_global_scale"], generate_gparam(low.float(), high.float())
            # torch divides a number by a tensor as the number times the rounded reciprocal: one bit may differ.
            if abs(int(theirs.view(torch.int32)) - int(given.view(torch.int32))) > 1:
                raise Differs(f"{module}: the global scale is {given}, compressed-tensors says {theirs}")
        if args.strategy != "tensor":
            low, high = ranges(weight, args)
        if not args.symmetric:
            check_zero_points(module, tensors, weight, low, high, quantized)
        for dtype in {torch.float32, weight.dtype}:
            made = made_by_compressed_tensors(quantized, weight.to(dtype), low.to(dtype), high.to(dtype), given,
                                              tensors["weight_scale"])
            must_equal = dtype == torch.float32 and args.symmetric
            for name, theirs in made.items():
                ours = tensors[name]
                if must_equal and not same_bits(theirs.to(ours.dtype), ours):
                    count = int((theirs.to(ours.dtype).contiguous().view(torch.uint8) != ours.view(torch.uint8)).sum())
                    raise Differs(f"{module}.{name}: {count} of {ours.nbytes} bytes differ from compressed-tensors'")
                part = PARTS.get(name)
                if part and not must_equal:
                    ours, theirs = [elements(name, value, tensors, args) for value in (ours, theirs.to(ours.dtype))]
                    others += Counter({(dtype, "differ", part): int((ours != theirs).sum()), (dtype, "all", part): ours.numel()})
    return others


# ---- Keys and values ----

def watched_cache(kind, folder):
    """The ranges of keys and values, as compressed-tensors' own hooks see them when transformers runs the model in f32."""
    model, seen = kind.from_pretrained(folder, dtype=torch.float32).eval(), {}
    for name, module in model.named_modules():
        if name.endswith(".self_attn"):
            initialize_hooked_kv_cache(model, module)
            for half, register in (("k", register_key_hook), ("v", register_value_hook)):
                def look(_, value, name=f"{name}.{half}"):
                    seen[name] = float(value.abs().max())
                register(module, look)
    with torch.no_grad():
        model(calibration_ids())
    return seen


def check_cache_scales(quantized, tensors, statistics, seen):
    """The scales are those that compressed-tensors makes of the same ranges, and the ranges what it would see. kvant runs
    the model in another order of sums."""
    if quantized.config.kv_cache_scheme is None or not seen:
        raise Differs("no kv_cache_scheme, or no attention layer")
    for name, range_seen in seen.items():
        scale, largest = tensors[f"{name}_scale"], statistics[f"{name}.absmax"].max()
        if abs(range_seen / float(largest) - 1) > 2e-5:
            raise Differs(f"{name}: kvant's largest number is {float(largest)}, compressed-tensors sees {range_seen}")
        theirs, _ = calculate_qparams(-largest.reshape(1), largest.reshape(1), quantized.config.kv_cache_scheme)
        if not same_bits(theirs.to(scale.dtype), scale):
            raise Differs(f"{name}_scale is {scale}, compressed-tensors makes {theirs}")
    if {f"{name}_scale" for name in seen} != set(filter(CACHE_SCALE.fullmatch, tensors)):
        raise Differs("there are other scales of keys and values than attention layers")


# ---- transformers ----

ACTIVATIONS = re.compile(r".*\.input_(scale|zero_point|global_scale)")


def load(kind, folder, dtype, **options):
    """The model, and the names of limits that were met."""
    try:
        model, info = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
    except RuntimeError as problem:
        # transformers says no more than this; its report goes to the log.
        for words, limit in (("ignore_mismatched_sizes", "zero points"), ("automatic conversion", "experts")):
            if words in str(problem):
                return None, [limit]
        raise
    limits = []
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        names = sorted(map(str, info.get(key) or []))
        if key == "unexpected_keys":
            for limit, pattern in (("activations", ACTIVATIONS), ("cache", CACHE_SCALE)):
                if any(map(pattern.fullmatch, names)):
                    limits.append(limit)
                    names = [name for name in names if not pattern.fullmatch(name)]
        if not names:
            continue
        if all(".experts." in name for name in names) and not options:
            return None, ["stacks"]
        raise Differs(f"{len(names)} {key.replace('_', ' ')}, first {names[0]}")
    return model.eval(), limits


def check_load(kind, folder, values, dtype, dequantize, through_bf16):
    """transformers loads the checkpoint, and after decompression its parameters are those of the model with kvant's values;
    those of some formats go through bf16. Returns whether they are equal, and the names of limits that were met."""
    model, limits = load(kind, folder, dtype, quantization_config=t.CompressedTensorsConfig(dequantize=dequantize))
    if model is None:
        return False, limits
    try:
        with torch.no_grad():
            model(torch.arange(16)[None])  # Compressed weights are decompressed by the first step.
    except RuntimeError as problem:
        if "to have the same dtype" not in str(problem):
            raise
        limits.append("bf16")
    expected, got = dict(values.named_parameters()), dict(model.named_parameters())
    if not dequantize:
        for name, scale in tensors_of(folder).items():
            if CACHE_SCALE.fullmatch(name) and not (name in got and same_bits(got[name].data, scale)):
                raise Differs(f"transformers has not loaded {name}")
    lacking = expected.keys() - got.keys()
    if lacking:
        raise Differs(f"parameters are missing: {sorted(lacking)[:3]}")
    wrong = [name for name, value in expected.items() if not same_bits(got[name].data, value.data.to(got[name].dtype))
             and not (through_bf16 and same_bits(got[name].data, value.data.bfloat16().to(got[name].dtype)))]
    if wrong and all(".experts." in name for name in wrong):
        return False, limits + ["global scales"]
    if wrong:
        raise Differs(f"{wrong[0]} of transformers differs from kvant's values")
    return True, limits


# ---- A family and a scheme ----

@dataclass
class Case:
    family: str
    kind: type
    experts: bool = False
    cache: bool = False
    scheme: object = None
    format: str = ""
    letters: str = ""
    limits: list = field(default_factory=list)
    refusal: str = ""
    left_out: str = ""
    failure: str = ""
    others: Counter = field(default_factory=Counter)  # as check_codes() counts them

    def meet(self, limits):
        for name in limits:
            if not LIMITS[name][0](self):
                raise Differs(f"'{name}' does not explain what happened here")
            if name not in self.limits:
                self.limits.append(name)


def quantize(tool, case, folder, statistics, options, output):
    """With statistics where the scheme needs them, and without the layer that they lack, as the refusals say. Returns the
    options that it took."""
    for _ in range(3):
        try:
            tool.quantize(folder, output, options)
            return options
        except Differs as problem:
            lacking = re.search(r"has no '(.+)\.(absmax|min)'", str(problem))
            if lacking:
                case.left_out = lacking.group(1)
                options = options + ["--ignore", case.left_out]
            elif "--stats" in str(problem) and "--stats" not in options:
                options = options + ["--stats", str(statistics)]
            else:
                raise
    raise Differs("kvant quantize asks for ever more options")


def same_rule(weights):
    """The option with which kvant finds scales as compressed-tensors does."""
    return ["--scale", "minmax-ct" if weights.type == "int" and weights.symmetric else "minmax"]


def check(tool, case, folder, statistics, options, output, scratch):
    exact, plain = Path(scratch) / "values", Path(scratch) / "plain"
    options = quantize(tool, case, folder, statistics, options, output)
    tool.must("verify", output)
    tool.must("convert", output, "-o", exact, "--to", "f32")
    quantized = Quantized(output)
    case.experts, case.scheme, case.format = quantized.experts, quantized.scheme, quantized.config.format
    case.cache = "--kv-fp8" in options
    check_files(quantized, tensors_of(exact))
    case.letters += "V"
    tool.quantize(folder, plain, options + same_rule(quantized.scheme.weights))
    case.others = check_codes(Quantized(plain), tensors_of(folder))
    if not quantized.scheme.weights.symmetric:
        case.meet(["codes with zero points"])
    case.letters += "C" if quantized.scheme.weights.symmetric else "c"
    if case.cache:
        check_cache_scales(quantized, tensors_of(output), load_file(statistics), watched_cache(case.kind, folder))
        case.letters += "K"
    values, limits = load(case.kind, exact, torch.float32)
    case.meet(limits)
    if values is None:
        return
    dtype = torch.float32 if case.family.endswith("f32") else torch.bfloat16
    for letter, dequantize in (("L", False), ("D", True)):
        equal, limits = check_load(case.kind, output, values, dtype, dequantize, case.format.startswith(("mx", "nv")))
        if "activations" in limits and not dequantize and not case.experts:
            raise Differs("transformers has no place for the scales of activations")
        if "cache" in limits and not dequantize:
            raise Differs("transformers has no place for the scales of keys and values")
        case.meet(limits)
        if equal:
            case.letters += letter.lower() if limits else letter


# ---- vLLM ----

def shown_to_vllm(python, folder):
    """What vllm_schemes.py says of the checkpoints in the folder."""
    run = subprocess.run([python, Path(__file__).with_name("vllm_schemes.py"), folder], capture_output=True, text=True)
    if run.returncode:
        raise Differs(f"vllm_schemes.py failed: {run.stderr.strip()[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


# ---- The page ----

PAGE = """# Checkpoints and loaders

`./dev interop` makes this page (`tests/interop/checkpoint_matrix.py`): every scheme of `kvant quantize` on a tiny random model of every
family, beside transformers {transformers}, compressed-tensors {compressed} and torch {torch}. Models are in bf16 but for the last column.
Options are those that the row names; all others have their defaults, so that codes of 4 bits have scales that were searched for.
Statistics of activations are from `kvant calibrate`, or from hooks in torch where kvant does not run the family; those of its experts, to
which torch gives no hook, are random numbers.

| letter | what was checked |
|---|---|
| V | compressed-tensors decompresses every module of the files to kvant's values (`kvant convert --to f32`), rounded once to the dtype that it multiplies in, bit for bit |
| C | with `--scale minmax-ct` (symmetric integers) or `--scale minmax` (all others), scales and codes are those that compressed-tensors makes from the original weights in f32, byte for byte (the global scale of NVFP4 to one bit) |
| c | the same but for what a note says |
| K | the scales of keys and values are those that compressed-tensors makes of the same ranges, byte for byte, and its hooks see these ranges in transformers, to 2·10⁻⁵; config.json passes its QuantizationConfig, and transformers loads the scales with the rest |
| L | transformers loads the checkpoint, compressed, without missing or unexpected keys, and has kvant's values after its first step |
| D | the same with `dequantize=True` |
| l, d | the values are right, and a note says what is not |
| – | refused by the tool, with a reason |

{table}

{notes}

## Where compressed-tensors makes other codes

C computes in f32, as kvant does. compressed-tensors itself computes in the dtype of the weights: in bf16 it rounds quotients twice, to
bf16 and to a code, so some scales and codes of the checkpoints above would be others. With zero points some are others in f32 too.
Counted over all families:

| model | its arithmetic | weights | scales that differ | zero points that differ | codes that differ |
|---|---|---|---|---|---|
{others}
{vllm}"""

VLLM = """
## vLLM

`./dev interop --vllm` makes this part; a run without leaves it as it is. The classes of vLLM {vllm} that read checkpoints, with
compressed-tensors {compressed}, were given {count} of the checkpoints above (`tests/interop/vllm_schemes.py`). They were
told that there is a GPU of capability {capability}; no kernel ran. {outcome}

- Its parser takes `quantization_config`, and leaves lm_head alone.
- Its linears (of the first block; q, k and v are fused, and so are gate and up) have a parameter for every tensor and no other, load
  the tensors, and then hold their bytes.
- It picks a class for the experts. That class was not made.
- It takes `kv_cache_scheme` and finds a place for the scales of keys and values.

| scheme | class of the linears | class of the experts |
|---|---|---|
{table}

An empty cell is a scheme that the tool refuses for experts. vLLM reads mxfp4a16 as mxfp4 and mxfp8a16 as mxfp8: whether activations are
quantized depends on the GPU's kernels. For w4a8 as it is stored it has kernels for CPUs and Intel's GPUs (for experts, Arm's CPUs only),
and for NVIDIA's GPUs none but perhaps Humming's, which was not installed.
"""
VLLM_TITLE = "\n## vLLM\n"


def table_of_others(cases):
    """A row for each format, number of bits and kind of arithmetic."""
    rows, name = defaultdict(Counter), {torch.float32: "f32", torch.bfloat16: "bf16"}
    for case in cases.values():
        model = torch.float32 if case.family.endswith("f32") else torch.bfloat16
        for (dtype, what, part), count in case.others.items():
            weights = case.scheme.weights
            text = f"{case.format}, {weights.num_bits} bits" + ("" if weights.symmetric else ", zero points")
            rows[name[model], name[dtype], text][what, part] += count

    def shown(count, part):
        differ, all_of_them = count["differ", part], count["all", part]
        return f"{differ:,} of {all_of_them:,} ({differ / all_of_them:.2%})" if all_of_them else ""

    return "\n".join("| " + " | ".join([*row, *(shown(count, part) for part in ("scales", "zero points", "codes"))]) + " |"
                     for row, count in sorted(rows.items()))


def vllm_section(columns, shown):
    """`shown`: family to what vllm_schemes.py says."""
    schemes = {scheme: {} for scheme in columns}
    for said in shown.values():
        for scheme, seen in said["checkpoints"].items():
            schemes[scheme] |= seen
    failures = [f"{family}, {scheme}: {seen['failure']}" for family, said in shown.items()
                for scheme, seen in said["checkpoints"].items() if "failure" in seen]
    code = lambda name: f"`{name}`" if name else ""
    where = lambda seen: ", no kernel for CUDA" if seen.get("device") not in ("CUDA", None) else ""
    lines = [f"| {scheme} | {code(seen.get('linears'))}{where(seen)} | {code(seen.get('experts'))} |"
             for scheme, seen in schemes.items()]
    said = next(iter(shown.values()))
    count = sum(len(each["checkpoints"]) for each in shown.values())
    return VLLM.format(vllm=said["versions"]["vllm"], compressed=said["versions"]["compressed-tensors"],
                       capability=".".join(map(str, said["capability"])), count=f"{count} (" + " and ".join(shown) + ")",
                       outcome="All passed:" if not failures else "All but these passed: " + "; ".join(failures) + ".",
                       table="\n".join(lines))


def page(columns, cases, vllm):
    numbers, lines = {}, []

    def note(text):
        return f"<sup>{numbers.setdefault(text, len(numbers) + 1)}</sup>"

    families = [family for family in FAMILIES if any(key[0] == family for key in cases)]
    lines.append("| | " + " | ".join(families) + " |")
    lines.append("|---" * (len(families) + 1) + "|")
    for scheme in columns:
        cells = []
        for family in families:
            case = cases[family, scheme]
            cell = "–" + note(f"Refused: {case.refusal}.") if case.refusal else case.letters
            cell += "".join(note(LIMITS[name][1]) for name in case.limits)
            if case.left_out:
                cell += note(f"With `--ignore {case.left_out}`: `kvant calibrate` does not run that layer.")
            cells.append("FAILS" if case.failure else cell)
        lines.append(f"| {scheme} | " + " | ".join(cells) + " |")
    notes = "\n".join(f"{number}. {text}" for text, number in numbers.items())
    return PAGE.format(table="\n".join(lines), notes=notes, others=table_of_others(cases), transformers=t.__version__,
                       compressed=compressed_tensors.__version__, torch=torch.__version__.partition("+")[0], vllm=vllm)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kvant", help="the tool")
    parser.add_argument("--write", metavar="FILE", help="make the page")
    parser.add_argument("--only", metavar="FAMILY/SCHEME", default="/", help="a part; either may be empty")
    parser.add_argument("--vllm", metavar="PYTHON", help="that of an environment with vLLM")
    arguments = parser.parse_args()
    only_family, _, only_scheme = arguments.only.partition("/")
    if arguments.write and (only_family or only_scheme):
        parser.error("the page needs all families and schemes: --write does not go with --only")
    t.utils.logging.set_verbosity(50)
    t.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="You passed `quantization_config`")
    tool, cases, shown, faults = Tool(arguments.kvant), {}, {}, []
    for family in FAMILIES:
        if only_family not in ("", family):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder, statistics, outputs = Path(scratch) / "model", Path(scratch) / "stats", Path(scratch) / "outputs"
            outputs.mkdir()
            model = make(family, folder)
            collect_statistics(tool, model, folder, statistics, scratch)
            columns = [(name, options) for name, options in tool.columns(folder) if only_scheme in ("", name)]
            for scheme, options in columns:
                case = cases[family, scheme] = Case(family, type(model))
                with tempfile.TemporaryDirectory() as place:
                    try:
                        check(tool, case, folder, statistics, options, outputs / scheme, place)
                    except Refused as reason:
                        case.refusal = str(reason)
                    except Exception as problem:  # Whatever it is, the other cells are of interest.
                        case.failure = f"{type(problem).__name__}: {problem}"
                remarks = [text for text in (case.refusal and f"refused: {case.refusal}", *case.limits,
                                             case.left_out and f"without {case.left_out}", case.failure) if text]
                print(f"{family:12} {scheme:22} {case.letters:5} {'; '.join(remarks)}", flush=True)
            if arguments.vllm and family in VLLM_FAMILIES:
                try:
                    shown[family] = shown_to_vllm(arguments.vllm, outputs)
                except Differs as problem:
                    faults.append((family, "", str(problem)))
    failures = sum(bool(case.failure) for case in cases.values())
    print(f"{len(cases)} checkpoints, {sum(bool(case.refusal) for case in cases.values())} refused, {failures} failed")
    faults += [(family, scheme, seen["failure"]) for family, said in shown.items()
               for scheme, seen in said["checkpoints"].items() if "failure" in seen]
    for fault in faults:
        print("vLLM: {:12} {:22} {}".format(*fault))
    if arguments.vllm:
        print(f"vLLM: {sum(len(said['checkpoints']) for said in shown.values())} checkpoints, {len(faults)} failed")
    else:
        print("vLLM: not installed")
    if arguments.write:
        path = Path(arguments.write)
        # What an earlier run has seen stays true of the version that it names.
        earlier = path.read_text() if path.exists() else ""
        names = [name for name, _ in columns]
        said = "".join(earlier.partition(VLLM_TITLE)[1:]).partition("<!-- end of ")[0]
        section = vllm_section(names, shown) if shown else said
        sections.write_section(path, "checkpoint_matrix.py", page(names, cases, section))
    return 1 if failures or faults or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
