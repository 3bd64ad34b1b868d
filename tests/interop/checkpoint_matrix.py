"""Every scheme of `kvant quantize` on a tiny model of every family, beside transformers and compressed-tensors.

    python tests/interop/checkpoint_matrix.py build/release/kvant [--write docs/interop.md] [--only FAMILY/SCHEME]

Needs torch, transformers and compressed-tensors. Prints a table of schemes and families; the page that --write makes has
it too, with what the letters mean. Ends with 1 if anything differs or fails that LIMITS does not explain.
"""

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
import transformers as t
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.utils import match_name
from safetensors import safe_open
from safetensors.torch import load_file, save_file

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

# Integers have another divisor in compressed-tensors (half of the range: 127.5 and 7.5), so their codes are compared only if
# the tool is asked for the same: ["--scale", "minmax-ct"], once it has that option.
EQUAL_INTEGER_SCALES = []


class Refused(Exception):
    pass


class Differs(Exception):
    pass


# ---- The tool ----

class Tool:
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

    def quantize(self, model, output, options):
        run = self.run("quantize", model, "-o", output, *options)
        if run.returncode == 1 and " is an expert and would be " in run.stderr:
            raise Refused(re.search(r", but (.*?)(: take another scheme|$)", run.stderr.strip()).group(1))
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


def collect_statistics(tool, model, folder, file, scratch):
    ids = torch.randint(0, SIZES["vocab_size"], (4, 32), generator=torch.Generator().manual_seed(3))
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
        self.tensors = tensors_of(folder)
        self.modules = defaultdict(dict)
        for name in self.tensors:
            if name.endswith(".weight_scale"):
                module = name.removesuffix(".weight_scale")
                self.modules[module] = {key.removeprefix(f"{module}."): value for key, value in self.tensors.items()
                                        if key.startswith(f"{module}.")}
        if not self.modules:
            raise Differs("no quantized module in the output")
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


def check_codes(quantized, original):
    """Scales and codes that compressed-tensors makes from the original weights equal kvant's, byte for byte. In f32: what
    llm-compressor makes of a model in bf16 divides in bf16 and rounds twice; the number of codes that are others then is
    returned."""
    args, others, all_codes = quantized.scheme.weights, 0, 0
    weights = {module: original_weight(original, module).float() for module in quantized.modules}
    for module, tensors in quantized.modules.items():
        weight, stored, common, given = weights[module], tensors["weight_scale"], [weights[module]], None
        shared = {"tensor": "weight_scale", "tensor_group": "weight_global_scale"}.get(args.strategy)
        if shared:  # Neighbours that loaders fuse have one scale, that of the largest of them.
            parent = module.rpartition(".")[0]
            common = [weights[other] for other in quantized.modules if other.rpartition(".")[0] == parent
                      and same_bits(quantized.modules[other][shared], tensors[shared])]
        low, high = min(w.min() for w in common), max(w.max() for w in common)
        if args.strategy == "tensor_group":
            given = tensors["weight_global_scale"]
            # torch divides a number by a tensor as the number times the rounded reciprocal: one bit may differ.
            if abs(int(generate_gparam(low, high).view(torch.int32)) - int(given.view(torch.int32))) > 1:
                raise Differs(f"{module}: the global scale is {given}, compressed-tensors says {generate_gparam(low, high)}")
        low, high = (low.reshape(1), high.reshape(1)) if args.strategy == "tensor" else ranges(weight, args)
        scale, zero_point = calculate_qparams(low, high, args, given)
        # As stored, and codes are made with the scale as it is stored.
        if stored.dtype in (torch.bfloat16, torch.float16, torch.float32):
            scale = scale.to(stored.dtype).float()
        state = {"weight": weight, "weight_scale": scale}
        if given is not None:
            state["weight_global_scale"] = given
        if not args.symmetric:
            state["weight_zero_point"] = zero_point
        made = quantized.compressor.compress(state, quantized.scheme)
        for name, theirs in made.items():
            ours = tensors[name]
            if not same_bits(theirs.to(ours.dtype), ours):
                count = int((theirs.to(ours.dtype).view(torch.uint8) != ours.view(torch.uint8)).sum())
                raise Differs(f"{module}.{name}: {count} of {ours.nbytes} bytes differ from compressed-tensors'")
        if stored.dtype == torch.bfloat16 and "weight" in made:
            state |= {"weight": weight.bfloat16(), "weight_scale": scale.bfloat16()}
            twice = quantized.compressor.compress(state, quantized.scheme)["weight"]
            others += int((twice.view(torch.uint8) != made["weight"].view(torch.uint8)).sum())
            all_codes += weight.numel()
    return others, all_codes


# ---- transformers ----

def load(kind, folder, dtype, dequantize=None):
    options = {} if dequantize is None else dict(
        quantization_config=t.CompressedTensorsConfig(dequantize=dequantize))
    model, info = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
    wrong = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
             if info.get(key)}
    if wrong:
        key, names = next(iter(wrong.items()))
        raise Differs(f"{len(names)} {key.replace('_', ' ')}, first {names[0]}")
    return model.eval()


def check_load(kind, folder, values, dtype, through, dequantize):
    """transformers loads the checkpoint, and after decompression its parameters are those of the model of kvant's values;
    `through` is the dtype that compressed-tensors decompresses to."""
    model = load(kind, folder, dtype, dequantize)
    ids = torch.arange(16)[None]
    with torch.no_grad():
        model(ids)  # Compressed weights are decompressed by the first forward pass.
    expected = dict(values.named_parameters())
    got = {name: value for name, value in model.named_parameters() if name in expected}
    if got.keys() != expected.keys():
        raise Differs(f"parameters are missing: {sorted(expected.keys() - got.keys())[:3]}")
    for name, value in got.items():
        if not same_bits(value.data, expected[name].data.to(through).to(dtype)) and not same_bits(
                value.data, expected[name].data.to(dtype)):
            raise Differs(f"{name} of transformers differs from kvant's values")


# ---- vLLM ----

def vllm_parser():
    try:
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    except ImportError:
        return None
    return CompressedTensorsConfig


# ---- The table ----

def check(tool, parser, family, kind, folder, statistics, options, scratch):
    output, exact = Path(scratch) / "out", Path(scratch) / "values"
    dtype = torch.float32 if family.endswith("f32") else torch.bfloat16
    letters, notes, counted = "", [], (0, 0)
    integers = "-static" not in options[1] and options[1].startswith("w")
    more = EQUAL_INTEGER_SCALES if integers else []
    try:
        try:
            tool.quantize(folder, output, options + more)
        except Differs as problem:
            if "needs --stats" not in str(problem) and "--stats" not in str(problem):
                raise
            tool.quantize(folder, output, options + more + ["--stats", statistics])
    except Refused as reason:
        return "refused", [str(reason)], counted
    tool.must("convert", output, "-o", exact, "--to", "f32")
    quantized = Quantized(output)
    check_files(quantized, tensors_of(exact))
    letters += "V"
    if quantized.scheme.weights.type == "float" or more:
        counted = check_codes(quantized, tensors_of(folder))
        letters += "C"
    if parser is not None:
        parser.from_config(json.loads((output / "config.json").read_text())["quantization_config"])
        letters += "P"
    through = torch.bfloat16 if "fp4" in quantized.config.format or "mx" in quantized.config.format else dtype
    try:
        values = load(kind, exact, torch.float32)
    except Exception as problem:  # noqa: BLE001
        return letters, [f"values: {problem}"], counted
    for letter, dequantize in (("L", False), ("D", True)):
        try:
            check_load(kind, output, values, dtype, through, dequantize)
            letters += letter
        except Exception as problem:  # noqa: BLE001
            notes.append(f"{letter}: {type(problem).__name__}: {problem}")
    return letters, notes, counted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvant")
    parser.add_argument("--write")
    parser.add_argument("--only", default="/")
    arguments = parser.parse_args()
    t.utils.logging.set_verbosity_error()
    t.utils.logging.disable_progress_bar()
    tool, vllm = Tool(arguments.kvant), vllm_parser()
    only_family, _, only_scheme = arguments.only.partition("/")
    for family in FAMILIES:
        if only_family not in ("", family):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder, statistics = Path(scratch) / "model", Path(scratch) / "stats"
            model = make(family, folder)
            source = collect_statistics(tool, model, folder, statistics, scratch)
            for scheme, options in tool.columns(folder):
                if only_scheme not in ("", scheme):
                    continue
                with tempfile.TemporaryDirectory() as place:
                    try:
                        result = check(tool, vllm, family, type(model), folder, statistics, options, place)
                    except Exception as problem:
                        result = "FAIL", [f"{type(problem).__name__}: {problem}"], (0, 0)
                print(family, source, scheme, *result, flush=True)


if __name__ == "__main__":
    sys.exit(main())
