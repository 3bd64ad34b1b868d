"""GPTQ by llm-compressor, as one run that choices.py measures.

    python tests/interop/llm_compressor.py FOLDER IDS OUT [--asymmetric] [--actorder ORDER] [--observer NAME]

IDS are tokens, separated by spaces. Everything that is not asked for is llm-compressor's default. Prints the seconds of
compressing and saving as JSON; those of imports and of loading the model are not in them.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("ids")
    parser.add_argument("output")
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--actorder")
    parser.add_argument("--observer")
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ids = [int(word) for word in Path(arguments.ids).read_text().split()]
    sequences = [ids[first:first + arguments.length] for first in range(0, len(ids), arguments.length)]
    data = Dataset.from_dict({"input_ids": sequences, "attention_mask": [[1] * len(part) for part in sequences]})
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    weights = dict(num_bits=4, type="int", strategy="group", group_size=arguments.group_size, symmetric=not arguments.asymmetric)
    if arguments.observer:
        weights["observer"] = arguments.observer
    options = {"actorder": arguments.actorder} if arguments.actorder else {}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    wall, cpu = time.perf_counter(), time.process_time()
    oneshot(model=model, dataset=data, max_seq_length=arguments.length, num_calibration_samples=len(data),
            recipe=GPTQModifier(config_groups={"group_0": scheme}, ignore=["lm_head"], **options))
    model.save_pretrained(arguments.output, save_compressed=True)
    sys.stdout.flush()
    print(json.dumps({"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}))


if __name__ == "__main__":
    main()
