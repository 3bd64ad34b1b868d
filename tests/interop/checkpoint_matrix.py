"""Every scheme of `kvant quantize` on a tiny model of every family, beside transformers and compressed-tensors.

    python tests/interop/checkpoint_matrix.py build/release/kvant [--write docs/interop.md] [--only FAMILY/SCHEME]

Needs torch, transformers and compressed-tensors; uses vLLM if it is there. Prints a line for each family and scheme and,
with --write, makes the page that explains the letters. Ends with 1 if anything fails that LIMITS does not explain.
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
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.utils import match_name
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




CODES = ("weight", "weight_packed")


class Refused(Exception):
    """The tool refuses a scheme for a family in words, as it should."""


class Differs(Exception):
    """What nothing explains."""


# What others cannot do, by name: a condition without which it would be a fault of ours, and the sentence for the page.
# `case` has family, experts (are some quantized?), scheme (QuantizationScheme) and format.
LIMITS = {
    "activations": (
        lambda case: case.scheme.input_activations is not None and case.scheme.input_activations.dynamic is not True,
        "transformers loads the weights, and reports the stored scales of activations, of which it has no use, as unexpected "
        "keys: with `dequantize=True` those of every module, else those of experts."),
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


def check_codes(quantized, original):
    """Scales and codes that compressed-tensors makes from the original weights, in f32, equal kvant's, byte for byte.
    Returns, for weights in bf16, how many of the bytes of each tensor are others in bf16, and of how many."""
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
        for dtype in {torch.float32, weight.dtype}:
            made = made_by_compressed_tensors(quantized, weight.to(dtype), low.to(dtype), high.to(dtype), given,
                                              tensors["weight_scale"])
            for name, theirs in made.items():
                ours = tensors[name]
                count = int((theirs.to(ours.dtype).contiguous().view(torch.uint8) != ours.view(torch.uint8)).sum())
                if dtype == torch.float32 and count:
                    raise Differs(f"{module}.{name}: {count} of {ours.nbytes} bytes differ from compressed-tensors'")
                if dtype != torch.float32:
                    part = "scales" if name == "weight_scale" else "codes" if name in CODES else name
                    others += Counter({("differ", part): count, ("all", part): ours.nbytes})
    return others


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
        if key == "unexpected_keys" and names and all(map(ACTIVATIONS.fullmatch, names)):
            limits.append("activations")
        elif names and all(".experts." in name for name in names) and not options:
            return None, ["stacks"]
        elif names:
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


# ---- vLLM ----

def vllm_parser():
    """What vLLM reads quantization_config with, if it is installed."""
    try:
        from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    except ImportError:
        return None
    return CompressedTensorsConfig


# ---- A family and a scheme ----

@dataclass
class Case:
    family: str
    kind: type
    experts: bool = False
    scheme: object = None
    format: str = ""
    letters: str = ""
    limits: list = field(default_factory=list)
    refusal: str = ""
    left_out: str = ""
    failure: str = ""
    others: Counter = field(default_factory=Counter)  # bytes, as check_codes() counts them

    def meet(self, limits):
        for name in limits:
            if not LIMITS[name][0](self):
                raise Differs(f"'{name}' does not explain what happened here")
            if name not in self.limits:
                self.limits.append(name)


def quantize(tool, case, folder, statistics, options, output):
    """With statistics where the scheme needs them, and without the layer that they lack, as the refusals say."""
    for _ in range(3):
        try:
            return tool.quantize(folder, output, options)
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


def check(tool, vllm, case, folder, statistics, options, scratch):
    output, exact = Path(scratch) / "out", Path(scratch) / "values"
    integers = options[1].startswith("w")
    quantize(tool, case, folder, statistics, options + EQUAL_INTEGER_SCALES * integers, output)
    tool.must("verify", output)
    tool.must("convert", output, "-o", exact, "--to", "f32")
    quantized = Quantized(output)
    case.experts, case.scheme, case.format = quantized.experts, quantized.scheme, quantized.config.format
    check_files(quantized, tensors_of(exact))
    case.letters += "V"
    if not integers or EQUAL_INTEGER_SCALES:
        case.others = check_codes(quantized, tensors_of(folder))
        case.letters += "C"
    if vllm is not None:
        vllm.from_config(json.loads((output / "config.json").read_text())["quantization_config"])
        case.letters += "P"
    values, limits = load(case.kind, exact, torch.float32)
    case.meet(limits)
    if values is None:
        return
    dtype = torch.float32 if case.family.endswith("f32") else torch.bfloat16
    for letter, dequantize in (("L", False), ("D", True)):
        equal, limits = check_load(case.kind, output, values, dtype, dequantize, case.format.startswith(("mx", "nv")))
        if "activations" in limits and not dequantize and not case.experts:
            raise Differs("transformers has no place for the scales of activations")
        case.meet(limits)
        if equal:
            case.letters += letter.lower() if limits else letter


# ---- The page ----

PAGE = """# Checkpoints and loaders

`./dev interop` makes this page (`tests/interop/checkpoint_matrix.py`): every scheme of `kvant quantize` on a tiny random model of every
family, beside transformers {transformers}, compressed-tensors {compressed} and torch {torch}. Models are in bf16 but for the last column.
Statistics of activations are from `kvant calibrate`, or from hooks in torch where kvant does not run the family; those of its experts, to
which torch gives no hook, are random numbers.

| letter | what was checked |
|---|---|
| V | compressed-tensors decompresses every module of the files to kvant's values (`kvant convert --to f32`), rounded once to the dtype that it multiplies in, bit for bit |
| C | scales and codes are those that compressed-tensors makes from the original weights in f32, byte for byte (the global scale of NVFP4 to one bit). Integers are not compared: compressed-tensors divides by 127.5 and 7.5, kvant by 127 and 7 |
| L | transformers loads the checkpoint, compressed, without missing or unexpected keys, and has kvant's values after its first step |
| D | the same with `dequantize=True` |
{vllm}| l, d | the values are right, and a note says what is not |
| – | refused by the tool, with a reason |

{table}

{notes}

## Models in bf16

C computes in f32, as kvant does. compressed-tensors itself computes in the dtype of the weights: in bf16 it rounds quotients twice, to
bf16 and to a code, so some scales and codes of the checkpoints above would be others.

| format | bytes of scales that differ | bytes of codes that differ |
|---|---|---|
{others}
"""


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
    formats = defaultdict(Counter)
    for case in cases.values():
        if case.others:
            formats[case.format] += case.others
    others = [f"| {name} | " + " | ".join(f"{count['differ', part] / count['all', part]:.2%}" for part in ("scales", "codes"))
              + " |" for name, count in formats.items()]
    return PAGE.format(table="\n".join(lines), notes=notes, others="\n".join(others), transformers=t.__version__,
                       compressed=compressed_tensors.__version__, torch=torch.__version__.partition("+")[0],
                       vllm="| P | vLLM's parser accepts quantization_config |\n" if vllm else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kvant", help="the tool")
    parser.add_argument("--write", metavar="FILE", help="make the page")
    parser.add_argument("--only", metavar="FAMILY/SCHEME", default="/", help="a part; either may be empty")
    arguments = parser.parse_args()
    only_family, _, only_scheme = arguments.only.partition("/")
    if arguments.write and (only_family or only_scheme):
        parser.error("the page needs all families and schemes: --write does not go with --only")
    t.utils.logging.set_verbosity(50)
    t.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="You passed `quantization_config`")
    tool, vllm, cases = Tool(arguments.kvant), vllm_parser(), {}
    for family in FAMILIES:
        if only_family not in ("", family):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder, statistics = Path(scratch) / "model", Path(scratch) / "stats"
            model = make(family, folder)
            collect_statistics(tool, model, folder, statistics, scratch)
            columns = [(name, options) for name, options in tool.columns(folder) if only_scheme in ("", name)]
            for scheme, options in columns:
                case = cases[family, scheme] = Case(family, type(model))
                with tempfile.TemporaryDirectory() as place:
                    try:
                        check(tool, vllm, case, folder, statistics, options, place)
                    except Refused as reason:
                        case.refusal = str(reason)
                    except Exception as problem:  # Whatever it is, the other cells are of interest.
                        case.failure = f"{type(problem).__name__}: {problem}"
                remarks = [text for text in (case.refusal and f"refused: {case.refusal}", *case.limits,
                                             case.left_out and f"without {case.left_out}", case.failure) if text]
                print(f"{family:12} {scheme:22} {case.letters:5} {'; '.join(remarks)}", flush=True)
    failures = sum(bool(case.failure) for case in cases.values())
    print(f"{len(cases)} checkpoints, {sum(bool(case.refusal) for case in cases.values())} refused, {failures} failed")
    if arguments.write:
        Path(arguments.write).write_text(page([name for name, _ in columns], cases, vllm))
    return 1 if failures or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
