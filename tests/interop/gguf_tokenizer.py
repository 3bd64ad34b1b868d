#!/usr/bin/env python3
"""The tokenizer.json that kvant makes of a SentencePiece model in a GGUF, against SentencePiece itself.

    python3 tests/interop/gguf_tokenizer.py build/release/kvant

Needs gguf, numpy, sentencepiece and tokenizers. A BPE model is trained on the pages of docs/, written into a GGUF as llama.cpp
writes it, and converted; both must cut every line of the sources of kvant into the same tokens.
"""

import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import sentencepiece
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HIDDEN = 32


def train(folder):
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(map(str, sorted((ROOT / "docs").glob("*.md")))), model_prefix=str(folder / "spm"), model_type="bpe", vocab_size=1500,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))


def token_type(model, i):
    if model.is_unknown(i):
        return gguf.TokenType.UNKNOWN
    if model.is_control(i):
        return gguf.TokenType.CONTROL
    return gguf.TokenType.BYTE if model.is_byte(i) else gguf.TokenType.NORMAL


def write_gguf(path, model):
    size = model.vocab_size()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in range(size)])
    writer.add_token_scores([model.get_score(i) for i in range(size)])
    writer.add_token_types([token_type(model, i) for i in range(size)])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    shapes = {"token_embd": (size, HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,),
              **{f"blk.0.{part}": (HIDDEN, HIDDEN) for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}}
    for name, shape in shapes.items():
        writer.add_tensor(name + ".weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(tool):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = train(folder)
        write_gguf(folder / "m.gguf", model)
        subprocess.run([tool, "convert", folder / "m.gguf", "-o", folder / "out", "-q"], check=True)
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "out" / "tokenizer.json"))
    lines = tokens = 0
    for path in sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("cli/**/*.cc")]):
        for line in [*path.read_text().split("\n"), "\u65e5\u672c\u8a9e \U0001f600 caf\u00e9  two  spaces 2024"]:
            if not line:
                continue  # SentencePiece adds its space to an empty text, tokenizers does not
            want, got = model.encode(line), tokenizer.encode(line)
            assert got.ids == [model.bos_id(), *want], (line, [model.id_to_piece(i) for i in want], got.tokens)
            assert tokenizer.decode(got.ids) == model.decode(want) == line, (line, tokenizer.decode(got.ids))
            lines, tokens = lines + 1, tokens + len(want)
    print(f"{lines} lines are the same {tokens} tokens")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/kvant").resolve())
