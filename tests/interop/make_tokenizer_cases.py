"""Writes tests/model/tokenizer_cases.json: small tokenizers, texts, and the ids that Hugging Face's `tokenizers` makes of
them. tests/model/tokenizer_cases_test.cc compares kvant's ids with these. With --check, nothing is written, and a file that
is not what it would be is an error."""

import itertools
import json
import pathlib
import sys

from tokenizers import Tokenizer, pre_tokenizers

FILE = pathlib.Path(__file__).resolve().parent.parent / "model" / "tokenizer_cases.json"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tokenizer(model, normalizer=None, pre=None, post=None, added=()):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added), "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": None, "model": model}


def added(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags


def bpe(tokens, merges, pairs=False, **options):
    tokens = list(tokens) + [a + b for a, b in merges if a + b not in tokens]
    tokens = list(dict.fromkeys(tokens))
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) if pairs else " ".join(pair) for pair in merges]} | options


def word_piece(tokens, **options):
    return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(tokens)}} | options


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
GPT2_MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r"), ("Ġw", "or"), ("Ġ", "Ġ"), ("Ġ", "a"), ("'", "s"),
               ("1", "2"), ("Ċ", "Ċ"), ("Ã", "©"), ("ĠĠ", "ĠĠ"), ("e", "l")]
GPT2_TEXTS = ["", "hello", "hello world", " hello  world's 123 ", "a\n\n b   \t c", "héllo wörld\u00a0!", "漢字 한국어 😀", "'S 's 'LL", "    \n    x", "\u180ea\u2003b"]
# All pairs of these merge, so that a cut in another place gives other ids.
LETTERS = list("ab AB1.-,\n") + ["é", "漢", "\u0301", "▁", "e", "É", "ﬁ", "f", "i"]
PAIRS = list(itertools.product(LETTERS, LETTERS))
CUT_TEXTS = ["", "a", " ", "ab ab", "  ab  ab  ", "ab.ab,, ab--1", "1ab11 a1b 111", "Ab É\u0301 ﬁ 漢漢a", "\na\n\nb ", "▁ab ▁", "..ab", "ab..", "é é"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "the", "é", "e", "##t", "##é", ",", "!", "漢", "字", "##字", "a", "##a", "ß", "i", "##\u0307", "I", "##i"]
BERT_TEXTS = ["", "unaffable", "The UNAFFABLE, été!", "漢字 a漢字", "aaaa", "zzz the", "a" * 100, "a" * 101, "a\u0000b\ufffd\ta\u200da", "İi ß ẞ", "unaffablex"]


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def cases():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    no_regex = byte_level | {"use_regex": False}
    end = added(len(ALPHABET) + len(GPT2_MERGES), "<|end|>")
    gpt2 = bpe(ALPHABET, GPT2_MERGES)
    yield "gpt2", tokenizer(gpt2, pre=byte_level, post=byte_level, added=[end]), GPT2_TEXTS + ["hello<|end|> world", "<|end|>", "<|end|>hello"]
    yield "gpt2 with a space in front", tokenizer(gpt2, pre=byte_level | {"add_prefix_space": True}, added=[end]), GPT2_TEXTS + ["hello<|end|>hello"]
    yield "gpt2 in one word", tokenizer(gpt2, pre=no_regex), GPT2_TEXTS
    begin = [added(len(ALPHABET) + len(GPT2_MERGES), "<b>")]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<b>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<b>": {"id": "<b>", "ids": [begin[0]["id"]], "tokens": ["<b>"]}}}
    llama3 = {"type": "Sequence", "pretokenizers": [split({"Regex": LLAMA3}, "Isolated"), no_regex]}
    yield "llama 3", tokenizer(bpe(ALPHABET, GPT2_MERGES, pairs=True, ignore_merges=True), pre=llama3,
                               post={"type": "Sequence", "processors": [byte_level, template]}, added=begin), GPT2_TEXTS + ["<b>hello"]
    # "world" is a token that no merge makes.
    yield "ignore_merges", tokenizer(bpe(ALPHABET + ["Ġworld"], GPT2_MERGES, ignore_merges=True), pre=byte_level), ["hello world", " world"]
    yield "merges count", tokenizer(bpe(ALPHABET + ["Ġworld"], GPT2_MERGES), pre=byte_level), ["hello world", " world"]
    yield "nfc", tokenizer(gpt2, normalizer={"type": "NFC"}, pre=byte_level), ["he\u0301llo", "é", "\u212b"]
    yield "digits", tokenizer(gpt2, pre={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}), ["a 12 3", "12", "½ x"]

    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    specials = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    piece_merges = [("▁", "h"), ("▁h", "i"), ("▁", "▁"), ("l", "l"), ("▁", "w"), ("é", "l")]
    pieces = bpe(["<unk>", "<s>", "</s>"] + bytes_ + list("▁hilowé"), piece_merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    piece_texts = ["", " ", "hi", "hi  hill", "<s>hi", "hi<s> hi </s>hi", "x\ny", "漢é", "▁hi", "él hi\u0000"]
    before = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    yield "llama 2", tokenizer(pieces, normalizer=before, added=specials), piece_texts
    for scheme, cut in itertools.product(["always", "first", "never"], [True, False]):
        meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
        yield f"metaspace {scheme} {cut}", tokenizer(pieces, pre=meta, added=specials), piece_texts
    yield "metaspace as it was", tokenizer(pieces, pre={"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}, added=specials), piece_texts
    few = ["<unk>", "a", "b", "<0x63>", "<0xC3>", "<0xA9>"]
    for fuse, fallback in itertools.product([True, False], [True, False]):
        yield f"unknown, fused {fuse}, bytes {fallback}", tokenizer(bpe(few, [("a", "b")], unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback)), \
            ["axxb", "xxc", "xcx", "xéxaé", "abab", "zz", "zzaz"]
    yield "no unknown token", tokenizer(bpe(["a", "b"], [("a", "b")])), ["axb", "x", "abxab"]
    # The leftmost first; a pair that another merge took; a pair that is twice in the list.
    yield "order", tokenizer(bpe(list("abc"), [("a", "a"), ("b", "c"), ("aa", "a"), ("a", "b"), ("aa", "aa"), ("ab", "c"), ("b", "c")])), \
        ["aaa", "aaaa", "aaaaa", "abc", "aabc", "ababc", "a" * 17]

    letters = bpe(LETTERS, PAIRS, pairs=True)
    for behavior, invert in itertools.product(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"], [False, True]):
        yield f"split {behavior} {invert}", tokenizer(letters, pre=split({"Regex": r"[\s,.1]"}, behavior, invert)), CUT_TEXTS
        yield f"split by a text {behavior} {invert}", tokenizer(letters, pre=split({"String": "."}, behavior, invert)), CUT_TEXTS
        yield f"split by nothing {behavior} {invert}", tokenizer(letters, pre=split({"Regex": "1*"}, behavior, invert)), CUT_TEXTS
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        yield f"punctuation {behavior}", tokenizer(letters, pre={"type": "Punctuation", "behavior": behavior}), CUT_TEXTS
    for type in ["Whitespace", "WhitespaceSplit", "BertPreTokenizer"]:
        yield type, tokenizer(letters, pre={"type": type}), CUT_TEXTS
    yield "digits together", tokenizer(letters, pre={"type": "Digits", "individual_digits": False}), CUT_TEXTS
    for type in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"]:
        yield type, tokenizer(letters, normalizer={"type": type}), CUT_TEXTS
    yield "a young character stays", tokenizer(bpe(["㋿", "令", "和", "f", "i"], []), normalizer={"type": "NFKC"}), ["㋿ﬁ"]
    for left, right in itertools.product([True, False], [True, False]):
        yield f"strip {left} {right}", tokenizer(letters, normalizer={"type": "Strip", "strip_left": left, "strip_right": right}), CUT_TEXTS
    yield "replace", tokenizer(letters, normalizer={"type": "Replace", "pattern": {"Regex": r"\s+|b"}, "content": ".."}), CUT_TEXTS

    around = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    bert_added = [added(i, token) for i, token in enumerate(BERT[:4])]
    for options in [{}, {"lowercase": False}, {"strip_accents": False}, {"strip_accents": True, "lowercase": False}, {"clean_text": False}, {"handle_chinese_chars": False}]:
        yield f"bert {options}", tokenizer(word_piece(BERT), normalizer=bert | options, pre={"type": "BertPreTokenizer"}, post=around, added=bert_added), BERT_TEXTS + ["[SEP] the[CLS]"]
    yield "roberta", tokenizer(letters, post={"type": "RobertaProcessing", "sep": ["b", 1], "cls": ["a", 0], "trim_offsets": True, "add_prefix_space": True}), ["ab", ""]

    flags = ["single_word", "lstrip", "rstrip", "normalized"]
    lower = {"type": "Lowercase"}
    next_id = len(letters["vocab"])
    added_texts = ["aBa", "a BA b", "  BA  ", "BABA", "aBA BAb", "é BA-ba.Ba", "BA", " ", "BABA BA  BA\n\nb", "ba1BA"]
    for chosen in itertools.product([False, True], repeat=4):
        yield f"added {chosen}", tokenizer(letters, normalizer=lower, added=[added(next_id, "BA ", special=False) | dict(zip(flags, chosen))]), added_texts
        yield f"added without a space {chosen}", tokenizer(letters, normalizer=lower, added=[added(next_id, "BAB") | dict(zip(flags, chosen)),
                                                                                       added(next_id + 1, "BABA", special=False) | dict(zip(flags, chosen))]), added_texts
    yield "added of the vocabulary", tokenizer(letters, added=[added(letters["vocab"]["ab"], "ab")]), ["aab", "abab"]
    yield "added spaces", tokenizer(letters, added=[added(next_id, "Q", rstrip=True), added(letters["vocab"][" "], " ")]), ["aQ  a Q", "Q Q", "Q   "]


def lines(values):
    """One line for each: a difference is then one line."""
    return "[\n" + ",\n".join(json.dumps(value, separators=(",", ":")) for value in values) + "\n]"


def main():
    models, content = [], []
    for name, file, texts in cases():
        judge = Tokenizer.from_str(json.dumps(file))
        if file["model"] not in models:
            models.append(file["model"])
        content.append({"name": name, "model": models.index(file["model"]), "rest": {key: value for key, value in file.items() if key != "model"},
                        "texts": [{"text": text, "plain": judge.encode(text, add_special_tokens=False).ids, "special": judge.encode(text).ids} for text in texts]})
    text = f'{{"models":{lines(models)},\n"cases":{lines(content)}}}\n'
    if "--check" not in sys.argv:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        sys.exit(f"{FILE} is not what tokenizers makes; write it again")


if __name__ == "__main__":
    main()
