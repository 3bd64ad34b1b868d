"""Text in many scripts, for comparing tokenizers: words, code, emoji, marks, odd spaces, control characters, numbers and
very long words. The same from every run. Characters are those that Debian 12's Python knows, of Unicode 14: PCRE2's tables there
are no younger, those of `tokenizers` are."""

import random
import unicodedata

WORDS = {
    "latin": "the quick brown fox jumps over lazy dog Straße façade naïve coöperate élan Ångström ĳsberg ǅungla İstanbul "
             "ıssız don't I'll we've they're it's you'd I'm CAN'T WE'LL ſtill ﬁne ﬂow Æther œuvre zażółć gęślą jaźń Việt "
             "Nam đường được người tiếng",
    "cyrillic": "быстрая коричневая лиса перепрыгивает через ленивую собаку Съешь ещё этих мягких французских булок їжак "
                "ґанок ўсё љубав Ѣдь",
    "greek": "η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί ΌΛΟΣ Ὀδυσσεύς ἄνθρωπος ᾳδης Σίσυφος",
    "arabic": "الثعلب البني السريع يقفز فوق الكلب الكسول مُحَمَّد لا إله ٱلْكِتَٰبُ گچپژ ١٢٣ ۴۵۶",
    "hebrew": "השועל החום המהיר קופץ מעל הכלב העצלן בְּרֵאשִׁית אַבְרָהָם ״צה״ל״",
    "devanagari": "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है क्षत्रिय ज्ञान श्री १२३ ॐ ऱ",
    "thai": "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ ภาษาไทย น้ำ ๑๒๓ กำลังใจ",
    "chinese": "敏捷的棕色狐狸跳过了懒狗 中文分词 漢字 繁體 𠮷野家 㐀㒨 豈更 〇 一二三 「引號」，。！？",
    "japanese": "素早い茶色の狐がのろまな犬を飛び越える カタカナ ﾊﾝｶｸ ひらがな が ガ ゛ 々 〜 ヷ ㍿ ①②③ ｶﾞ",
    "korean": "빠른 갈색 여우가 게으른 개를 뛰어넘는다 한국어 각 힣 ㄱㄴㄷ 가나다",
}
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x530, 0x6FF), (0x700, 0x9FF), (0xA00, 0xDFF),
          (0xE00, 0x10FF), (0x1100, 0x139F), (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x2E80, 0x31FF), (0x3400, 0x4DFF),
          (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFFFD), (0x10000, 0x10FFF),
          (0x11000, 0x11FFF), (0x1D000, 0x1D7FF), (0x1E900, 0x1EFFF), (0x1F000, 0x1FAFF), (0x20000, 0x200FF),
          (0x2F800, 0x2FA1F), (0xE0000, 0xE01EF)]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u1680", "\u180e", "\u2003", "\u2028", "\u2029",
          "\u202f", "\u205f", "\u3000", "\u200b", "\u0085", "\x0b", "\x0c", "\x1c", " \t\n", "      \n      ", "\ufeff"]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "👍🏽", "❤️", "🤷🏿‍♀️", "1️⃣", "🧑‍🚀", "🫠", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
MARKS = ["e\u0301", "a\u0308\u0323", "o\u0302\u0301", "q\u0307\u0323", "\u1100\u1161\u11a8", "Z\u0351\u036b\u0343", "\u0915\u093c",
         "\u212b", "\ufb01", "\u0344", "\u0958", "\u1e9b\u0323", "\u00bd", "\u2460", "\uff21"]
CODE = ["for (int i = 0; i < n; ++i) {\n\ta[i] += b[i]*2;\n}\n", "def f(x):\n    return {'a': x[1:-1], **k}\n", "#include <vector>\n",
        "SELECT * FROM t WHERE x >= 3.14;\n", "<div class=\"a-b\">&nbsp;</div>", "0x7fff_ffff", "http://example.org/?q=a%20b#c",
        "$PATH", "x != y && !z || ~w", "/* ***** */", "λx.x", "a_b__c", "--help", "'''doc'''", "\\p{L}+|\\s+"]
SPECIAL = ["<s>", "</s>", "<unk>", "<|endoftext|>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<|begin_of_text|>", "<|im_start|>user\n",
           "<pad>", " <mask> ", "<mask>  ", "Yesterday", "yesterday", "YESTERDAY's"]


def _number(rng):
    kind = rng.randrange(5)
    if kind == 0:
        return str(rng.randrange(10 ** rng.randrange(1, 25)))
    if kind == 1:
        return f"{rng.uniform(-1e6, 1e6):,.3f}"
    if kind == 2:
        return "".join(rng.choice("٠١٢٣४५६๗๘๙０１²³½Ⅷ⑨") for _ in range(rng.randrange(1, 6)))
    if kind == 3:
        return f"{rng.randrange(2100)}-{rng.randrange(13):02}-{rng.randrange(32):02}"
    return f"{rng.uniform(0, 1):.2e}%"


def _piece(rng, words):
    kind = rng.randrange(100)
    if kind < 55:
        script = rng.choice(list(words))
        return " ".join(rng.choice(words[script]) for _ in range(rng.randrange(1, 12))) + rng.choice([". ", ", ", "! ", "\n", " — ", "; "])
    if kind < 63:
        low, high = rng.choice(RANGES)
        characters = (chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 20)))
        return "".join(c for c in characters if unicodedata.category(c) != "Cn")
    if kind < 70:
        return rng.choice(SPACES) * rng.randrange(1, 4)
    if kind < 76:
        return rng.choice(EMOJI) * rng.randrange(1, 4)
    if kind < 81:
        return "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 5)))
    if kind < 87:
        return rng.choice(CODE)
    if kind < 92:
        return _number(rng)
    if kind < 95:
        return rng.choice(SPECIAL)
    if kind < 97:
        return chr(rng.choice([0, 1, 7, 8, 27, 31, 127, 128, 0x9B, 0xAD, 0x200D, 0x202E, 0xFFFD, 0xFFFE, 0x10FFFF]))
    if kind < 98:
        return rng.choice(["a", "ab", "🙂", "ё", "한", "=", "-", " ", "x1"]) * rng.randrange(50, 400)
    return unicodedata.name(chr(rng.randrange(0x10000)), "nameless").title() + " "


def mixed_text(characters, seed=1):
    """At least so many characters."""
    rng = random.Random(seed)
    words = {script: text.split() for script, text in WORDS.items()}
    pieces, length = [], 0
    while length < characters:
        piece = _piece(rng, words)
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)


def chunks(text, seed=2):
    """The text in parts of very different lengths, and some parts that are hard by themselves."""
    rng = random.Random(seed)
    parts, at = [], 0
    while at < len(text):
        size = rng.choice([1, 2, 3, 5, 8, 20, 50, 100, 300, 1000])
        parts.append(text[at:at + size])
        at += size
    hard = ["", " ", "  ", "\n", "<s>", " <s> ", "<s><s>", "a", "'s", "'S", "'ll 'LL 'lL", "\u0301", "a\u0301", "İ", "ẞ", "ﬆ", "\u200d", "\u180e",
            " " * 5000, "\n" * 3000, "a" * 20000, "é" * 5000, "漢" * 3000, "9" * 3000, " \u00a0" * 500, "a " * 2000]
    return parts + hard


def every_character():
    """Each character that Python's tables know, between letters, spaces and itself, 16 to a text; a few for private use."""
    private = range(0xE010, 0xF900)
    known = [chr(c) for c in range(0xF0000) if unicodedata.category(chr(c)) not in ("Cn", "Cs") and c not in private]
    return ["|".join(f"x{c}y {c} {c}{c}1{c}" for c in known[i:i + 16]) for i in range(0, len(known), 16)]
