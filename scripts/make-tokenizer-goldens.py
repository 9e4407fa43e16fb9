#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: small tokenizers of each kind, and what Hugging Face's tokenizers does with them.

Every NAME/tokenizer.json is trained here, on the text below, and NAME/cases.json holds for each text the ids with
("ids") and without ("plain") special tokens and the text decoded from "ids", without ("decoded") and with
("decoded_special") special tokens. Needs the Python package tokenizers; running it twice gives the same bytes.
"""

import argparse
import json
import os
import pathlib

os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it warns that there is no PyTorch, which nothing here needs

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """
The hay is up in the loft and the needle is somewhere in the hay. Nobody who has looked for a needle in a haystack
forgets how long the afternoon was: straw by straw, handful by handful, and the light going. "You'll never find it,"
said the farmer's daughter; "we've lost three there since the spring, and I'm sure they're all still waiting."
He didn't answer. He'd counted 1,024 bales in 2019, 4096 in 2021 and 65536 since then, and he'd count them again.
THE BARN WAS OLDER THAN THE HOUSE. Its door had been painted in 1887, again in 1923, and never since then.
They would've gone home at six, but the others weren't tired, so they'd another look: under the beams, behind the cart,
between the wheels, and there - there! - it was, thinner than a hair and brighter than the water in the well.
Über allen Gipfeln ist Ruh, in allen Wipfeln spürest du kaum einen Hauch; die Vögelein schweigen im Walde.
Été après été, le garçon naïf rêvait d'un château où l'on mangeait des crêpes, des pâtes et du maïs grillé.
El niño comió piña mañana por la mañana; ¿cuántos años tiene el señor? ¡Quién sabe!
Съешь же ещё этих мягких французских булок, да выпей чаю. Все счастливые семьи похожи друг на друга.
Η γρήγορη αλεπού πηδάει πάνω από τον τεμπέλη σκύλο. Ένα νησί, μια θάλασσα, ένα καράβι.
天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。日本語の文章と、ひらがな、カタカナ。
나는 오늘도 바다를 보았다. 다람쥐 헌 쳇바퀴에 타고파.
السلام عليكم ورحمة الله وبركاته. اللغة العربية جميلة جدا.
नमस्ते दुनिया, यह एक छोटा वाक्य है। หนูชอบกินข้าวกับปลา
for (int i = 0; i < n; ++i) { sum += x[i] * y[i]; }  // inner product
    if (sum >= 0.5) return sum / (n - 1);
\tdef find(self, needle): return self.hay.index(needle) if needle in self.hay else None
😀 🚀 ✅ 👍 ❤️ … — “quoted” ‘single’ 12.5 % 3rd 1st 2nd x² ½ ① ﬁne
"""

TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\t\t\n \n\n  \n   x",
    "The needle is in the hay.",
    " The needle is in the hay. ",
    "THE BARN WAS OLDER. the barn was older.",
    "You'll never find it; they're, we've, I'm, he'd, didn't, it's",
    "YOU'LL NEVER, THEY'RE, WE'VE, I'M, HE'D, DIDN'T, IT'S, 'Tis y'all'd've",
    "'s't're've'm'll'd 'S 'ſ ’s I\u2019m",
    "a  b   c    d\te\t\tf",
    "trailing spaces   ",
    "line one\nline two\r\nline three\r\r\n\n\nline four\n",
    "   \n   \n\t \n",
    "1 12 123 1234 12345 1,234,567.89 0x1F 3.14e-10",
    "٣٤٥ ४५६ Ⅷ ² ½ ㉈ 𝟗𝟘",
    "e\u0301te\u0301 \u00e9t\u00e9 A\u030a \u00c5 \u212b o\u0323\u0302 o\u0302\u0323 q\u0307\u0323",
    "\u1112\u1161\u11ab \ud55c \uac00\u11a8 나는 오늘도",
    "ﬁne ﬀ ｆｕｌｌｗｉｄｔｈ ① ㎏ ㍿ ℌ ſ",
    "İstanbul DŽ ǅ ǆ ẞ ß ΑΣ ας",
    "Über spürest Vögelein naïf château crêpes señor ¿Quién?",
    "Съешь же ещё этих мягких французских булок",
    "Η γρήγορη αλεπού πηδάει ᾳ ᾼ",
    "天地玄黄，宇宙洪荒。日本語の文章、ひらがな・カタカナ １２３",
    "السلام عليكم ورحمة الله ـــ َُِ ١٢٣",
    "नमस्ते दुनिया क्षत्रिय हिन्दी",
    "หนูชอบกินข้าวกับปลา",
    "\u1780\u17b6\u1793\u17cb\u178f\u17c2",
    "😀🚀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇮🇹🇯🇵 ❤️ ☺",
    "zalgo Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324 done",
    "nbsp\u00a0here \u2003em\u3000ideographic\u200bzero\u180emvs \u0085nel\u2028ls\u2029ps",
    "\u0000\u0001\u0007\b\u000b\u000c\u001b[31m\u007f\u0080\u009f",
    "\ufeffbom \ufffd \uffff \ue000 \U000f0000 \U0010ffff soft\u00adhyphen \u2060wj",
    "\u200f\u202eright-to-left\u202c mark",
    "for (int i = 0; i < n; ++i) { sum += x[i]*y[i]; } // ok",
    "    if (a!=b){\n\t\treturn -1;\n    }\n",
    "https://example.org/path?q=1&r=%20#frag user@example.org C:\\temp\\x",
    "snake_case camelCase PascalCase HTTPServer iPhone15Pro kebab-case",
    "!!!???... --- ***** (((()))) <<<>>> \"'`´ $€£¥ ±×÷ ∑∫√",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the thethethe hayhayhay needleneedle " * 4,
    "▁ ▁▁ a▁b ▁a ▁",
    "<0x41> <0xE2><0x96> <unk> <s> </s>",
    "Ġ Ċ Âł ĠĠ",
    "«guillemets» „low“ ‹›〈〉《》「」",
    "x\u0338= \u20d2 \u20e3 1\ufe0f\u20e3 #\ufe0f\u20e3",
    "\U0001d54b\U0001d559\U0001d556 \U00010330\U00010348 \U00020000\U0002a6d6 \U0001f130\u24b6\u24e9",
    "word\u200djoiner\u200cnon tab\u000bvt a_b __c__ Ça-va l'été",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def train(tokenizer, size, lines=None, alphabet=(), **options):
    """On the first so many lines of the text, which leaves characters of the others unknown."""
    options = {"vocab_size": size, "initial_alphabet": list(alphabet), "show_progress": False, **options}
    tokenizer.train_from_iterator(CORPUS.strip("\n").split("\n")[:lines], trainers.BpeTrainer(**options))


def forget_added(tokenizer, kept):
    """Leaves only the first so many added tokens; the others stay in the vocabulary."""
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:kept]
    return Tokenizer.from_str(json.dumps(document))


def byte_level(size, pattern, specials, normalizer=None, **model):
    """Pieces of `pattern` in GPT-2's byte letters; with no pattern ByteLevel's own."""
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, size, alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(specials)
    return tokenizer


def sentencepiece(size, normalizer=None, pre_tokenizer=None):
    """Characters with ▁ for the space, <0xNN> for the bytes of what is not in the vocabulary."""
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    # Without words to keep apart, training would merge across them.
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(trained, size, lines=11, special_tokens=specials)

    tokenizer = forget_added(trained, 3)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    return tokenizer


def gpt2():
    tokenizer = byte_level(420, None, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3():
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_1|>"]
    specials.append("<|reserved_special_token_12|>")
    tokenizer = byte_level(440, LLAMA3, specials, ignore_merges=True)
    bos = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    template = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[bos])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen2():
    tokenizer = byte_level(440, QWEN2, ["<|im_start|>", "<|im_end|>"], normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer


def o200k():
    return byte_level(380, O200K, ["<|endoftext|>", "<|endofprompt|>"])


def roberta():
    tokenizer = byte_level(340, None, ["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bos, eos = (("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>")))
    tokenizer.post_processor = processors.RobertaProcessing(eos, bos)
    return tokenizer


def split_chain():
    """Several splits in a row, as DeepSeek and Falcon have them."""
    tokenizer = byte_level(360, None, ["<|end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"[\u4e00-\u9fff\u3040-\u30ff]+"), "isolated"),
            pre_tokenizers.Split(Regex(r"[^(\s|[.,!?…。，])]+"), "contiguous"),
            pre_tokenizers.Split(Regex(r"\s{2,3}+"), "merged_with_previous"),
            pre_tokenizers.Punctuation("merged_with_next"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def llama2():
    return sentencepiece(520, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))


def metaspace():
    return sentencepiece(480, None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=True))


def gemma():
    tokenizer = sentencepiece(480, normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def flags():
    """Added tokens with every flag, over a vocabulary with an unknown token."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(left=False, right=True),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\d{4,}"), "#"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    train(tokenizer, 300, lines=11, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.add_tokens(
        [
            AddedToken("[LEFT]", lstrip=True, normalized=False),
            AddedToken("[RIGHT]", rstrip=True, normalized=False),
            AddedToken("[BOTH]", lstrip=True, rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("loft", normalized=True),
            AddedToken("haystack", normalized=True, single_word=True),
            AddedToken("[RIGHT][RIGHT]", normalized=False),
        ]
    )
    cls, sep = (("[CLS]", 1), ("[SEP]", 2))
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[cls, sep])
    return tokenizer


def marked(size, tokenizer, prefix="", suffix=""):
    """Characters with a mark for their place in the word; naming them beforehand fixes their ids."""
    characters = sorted(set("".join(CORPUS.strip("\n").split("\n")[:11])) - {" "})
    specials = ["<unk>"] + [prefix + character + suffix for character in characters]
    marks = {"continuing_subword_prefix": prefix} if prefix else {"end_of_word_suffix": suffix}
    train(tokenizer, size, lines=11, special_tokens=specials, **marks)
    return forget_added(tokenizer, 1)


def word_ends():
    """Marks for the ends of words and for what continues them, as the first BPE models had."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return marked(400, tokenizer, suffix="</w>")


def continuations():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    split = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    return marked(360, tokenizer, prefix="##")


def declared(content, **flags):
    """An added token as tokenizer_config.json and special_tokens_map.json write it."""
    token = {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {**token, "special": True, **flags}


def declared_decoder():
    """added_tokens_decoder: ids in their order, whatever they say; flags that override; the older files unread."""
    tokenizer = gpt2()
    size = tokenizer.get_vocab_size()
    tokens = {
        str(size - 1): declared("<|endoftext|>", lstrip=True),
        str(size + 9): declared("<|im_start|>"),
        str(size): declared("<tool_call>", special=False),
        str(size + 1): declared("the hay", special=False, normalized=True),
        str(size + 2): declared("hay", special=False, single_word=True),
    }
    config = {"added_tokens_decoder": tokens, "bos_token": "<bos>", "eos_token": "<tool_call>"}
    return tokenizer, {
        "tokenizer_config.json": config,
        "added_tokens.json": {"<unread>": size},
        "special_tokens_map.json": {"pad_token": "<pad>"},
    }


def declared_named():
    """Special tokens by name, some the tokenizer has already, and lists and objects of others."""
    config = {
        "eos_token": {"__type": "AddedToken", **declared("<|im_end|>", rstrip=True)},
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "pad_token": None,
        "image_token": "<image>",
        "audio_token": "<audio>",
        "add_prefix_space": False,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    }
    return llama2(), {"tokenizer_config.json": config}


def declared_older():
    """What older checkpoints have: added_tokens.json and special_tokens_map.json."""
    tokenizer = qwen2()
    size = tokenizer.get_vocab_size()
    special = {
        "eos_token": declared("<|eos|>", lstrip=True),
        "bos_token": "<tool>",
        "additional_special_tokens": ["<|box|>", "<|im_end|>"],
    }
    return tokenizer, {
        "tokenizer_config.json": {},
        "added_tokens.json": {"<|box|>": size + 1, "<tool>": size, "<|quad|>": size + 2},
        "special_tokens_map.json": special,
    }


DECLARED = [declared_decoder, declared_named, declared_older]
KINDS = [gpt2, llama3, qwen2, o200k, roberta, split_chain, llama2, metaspace, gemma, flags, word_ends, continuations]
MERGES_AS_TEXT = {"gpt2", "llama2"}  # "a b", as files had them before 2024


def around_added_tokens(tokenizer):
    tokens = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    for token in tokens:
        yield f"{token}hay {token} loft  {token}\n{token}{token}é {token[:-1]} {token.upper()} {token.lower()}"
    yield "".join(tokens)
    yield " " + " ".join(tokens) + "  x"
    yield "words word_ sword word. (word) wordé haystacks haystack HAYSTACK, loft LOFT Löft"


def cases(tokenizer, texts):
    for text in texts:
        ids = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        as_words = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = False
        yield {
            "text": text,
            "ids": ids,
            "plain": tokenizer.encode(text, add_special_tokens=False).ids,
            "as_words": as_words,  # special tokens that stand in the text are read as words
            "decoded": tokenizer.decode(ids),
            "decoded_special": tokenizer.decode(ids, skip_special_tokens=False),
        }


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


def write_kind(folder, tokenizer, beside):
    """tokenizer.json, the files that lie beside it, and the cases; returns how many entries there are."""
    document = json.loads(tokenizer.to_str())
    if folder.name in MERGES_AS_TEXT:
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", document)
    texts = TEXTS
    if beside:
        for name, value in beside.items():
            write_json(folder / name, value)
        fast = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer, texts = fast.backend_tokenizer, TEXTS[:8]
    with open(folder / "cases.json", "w", encoding="utf-8") as file:
        every = texts + list(around_added_tokens(tokenizer))
        lines = (json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases(tokenizer, every))
        file.write(f'{{"tokenizers":"{tokenizers.__version__}","cases":[\n' + ",\n".join(lines) + "\n]}\n")
    return tokenizer.get_vocab_size()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "tokenizers"
    parser.add_argument("--out", type=pathlib.Path, default=default, help="folder to write (default: %(default)s)")
    out = parser.parse_args().out

    for kind in KINDS + DECLARED:
        made = kind()
        tokenizer, beside = made if isinstance(made, tuple) else (made, {})
        print(f"{kind.__name__}: {write_kind(out / kind.__name__, tokenizer, beside)} entries")


if __name__ == "__main__":
    main()
