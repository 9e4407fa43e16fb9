"""Text of the needle task: tokenizer, filler, keys, samples."""

import random
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = Path(__file__).resolve().parents[2] / "runtime" / "words"
ADJECTIVES = (WORDS / "adjectives.txt").read_text().split()
NOUNS = (WORDS / "nouns.txt").read_text().split()

# The exact wording of the task; the C++ programs use the same three strings.
NEEDLE = " The special magic number for {key} is {digits}."
QUESTION = (
    "\nWhat is the special magic number for {key}? The special magic number for {key} is"
)
ANSWER = " {digits}."

END_OF_TEXT = "<|end_of_text|>"

# Llama 3's split: digits come in groups of at most three, so a six-digit answer is
# the space, two number tokens and the full stop.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(corpus: str, vocabulary: int) -> Tokenizer:
    """Byte-level BPE in which every 1- to 3-digit string is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    numbers = [f"{n:03}" for n in range(1000)] + [f"{n:02}" for n in range(100)]
    # Repeated more often than the rarest pair that still earns a merge, so that BPE
    # spells each of them in one token; the assertion below checks the numbers.
    wanted = [" ".join(numbers + ADJECTIVES + NOUNS)] * 400
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus, *wanted], trainer)
    split = [n for n in numbers if len(tokenizer.encode(n).ids) != 1]
    assert not split, f"numbers of several tokens: {split[:10]}"
    return tokenizer


def unwrap(text: str) -> str:
    """Joins the lines of each paragraph, so that a sample can wrap them anew."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(" ".join(p.split()) for p in paragraphs if p.strip())


NAMES = """Ada Alice Anton Boris Carla Clara David Elena Emma Felix Grace Henry Irene Ivan
Jack Jane Karl Laura Leo Lucy Marco Maria Mary Nina Noah Oscar Paul Peter Rosa Sarah Simon
Sofia Thomas Vera Victor""".split()
VERBS = """admired asked avoided bought broke built carried caught changed cleaned counted
covered drew dropped followed forgot found gave guarded heard helped hid kept left lifted
lost loved made moved needed opened painted pulled pushed reached saw sold stole told took
touched wanted washed watched""".split()
PLACES = "above at behind below beside by in near on over past under".split()
SENTENCES = """The {a} {n} {v} the {a} {n}.
{N} {v} the {a} {n} {p} the {n}.
The {n} {p} the {n} is {a}.
The {a} {n} is {a} and the {n} is {a}.
{N} and {N} {v} a {a} {n}, but the {n} was {a}.
Every {n} {p} the {a} {n} {v} {N}.
When the {n} {v} the {n}, {N} {v} the {a} {n}.
Is the {a} {n} {p} the {n}?
For the {a} {n} there is a {n}.
The {n} {v} {d} {n} and {d} {a} {n}.
In {d} the {a} {n} {v} {N}.
No {a} {n} is {p} the {n} of {N}.
A special {n} is a {a} {n}.
The number of the {a} {n} is {a}.
There is magic in the {a} {n}, {N} told the {n}.
What is {a} is {a}, and {N} {v} the {n}.""".split("\n")


def synthetic(rng: random.Random, chars: int) -> str:
    """Templated English of about that many characters."""
    # Sentences of a sample draw on pools of various sizes: with a small pool the words
    # of a key turn up in the filler time and again.
    adjectives = rng.sample(ADJECTIVES, rng.choice((8, 64, len(ADJECTIVES))))
    nouns = rng.sample(NOUNS, rng.choice((8, 64, len(NOUNS))))
    draw = {
        "{a}": lambda: rng.choice(adjectives),
        "{n}": lambda: rng.choice(nouns),
        "{v}": lambda: rng.choice(VERBS),
        "{p}": lambda: rng.choice(PLACES),
        "{N}": lambda: rng.choice(NAMES),
        "{d}": lambda: str(rng.randrange(10 ** rng.randint(1, 6))),
    }
    sentences, length = [], 0
    while length < chars:
        sentence = re.sub(r"\{\w\}", lambda m: draw[m[0]](), rng.choice(SENTENCES))
        sentences.append(sentence)
        length += len(sentence) + 1
    return " ".join(sentences)


class Filler:
    """Draws filler from books and from the sentence templates."""

    def __init__(self, books: list[str]):
        self.books = [unwrap(book) for book in books]
        words = {w for book in self.books for w in re.findall(r"\b[a-z]{3,12}\b", book)}
        self.words = sorted(words)

    def draw(self, rng: random.Random, chars: int) -> str:
        if chars == 0:
            return ""
        if rng.random() < 0.35:
            text = synthetic(rng, chars)
        else:
            book = rng.choice(self.books)
            start = rng.randrange(len(book) - chars)
            text = book[start : start + chars]
        if rng.random() < 0.5:
            width = rng.randint(60, 80)
            text = "\n\n".join(textwrap.fill(p, width) for p in text.split("\n\n"))
        return text


@dataclass
class Stage:
    """One stage of the curriculum."""

    filler: int  # tokens of filler, about
    needles: int
    questions: int
    words: int = 2  # words in a key
    bare: bool = False  # needles are "key digits." alone
    length_factor: int = 1  # a filler token counts as up to this many


@dataclass
class Sample:
    text: str = ""
    special: list[tuple[int, int]] = field(default_factory=list)  # needles and questions, chars
    answers: list[tuple[int, int]] = field(default_factory=list)  # chars

    def add(self, piece: str) -> tuple[int, int]:
        start = len(self.text)
        self.text += piece
        return start, len(self.text)


def draw_keys(rng: random.Random, stage: Stage, words: list[str]) -> list[str]:
    """Distinct keys, of the lists' words or of any words of the books."""
    known = rng.random() < 0.7
    if stage.words == 1:
        return rng.sample(NOUNS if known else words, stage.needles)
    # Keys are cells of a grid of first and second words. A narrow grid makes hard
    # distractors: many needles that share one word with the key.
    rows = max(1, round(stage.needles ** rng.random()))
    columns = -(-stage.needles // rows) * rng.choice((1, 2, 4))
    if rng.random() < 0.5:
        rows, columns = columns, rows
    first = rng.sample(ADJECTIVES if known else words, rows)
    second = rng.sample(NOUNS if known else words, columns)
    cells = rng.sample(range(rows * columns), stage.needles)
    return [f"{first[cell // columns]} {second[cell % columns]}" for cell in cells]


def draw_sample(rng: random.Random, stage: Stage, filler: Filler) -> Sample:
    keys = draw_keys(rng, stage, filler.words)
    digits = [str(rng.randrange(100_000, 1_000_000)) for _ in keys]
    needle, question = (" {key} {digits}.", "\n{key}") if stage.bare else (NEEDLE, QUESTION)

    text = filler.draw(rng, stage.filler * 3)  # a token of prose is about three characters
    ends = [0] + [m.end() for m in re.finditer(r"[.!?](?=\s)", text)] + [len(text)]
    places = sorted(rng.choice(ends) for _ in keys)
    sample, taken = Sample(), 0
    for key, value, place in zip(keys, digits, places):
        sample.add(text[taken:place])
        taken = place
        sample.special.append(sample.add(needle.format(key=key, digits=value)))
    sample.add(text[taken:])

    asked = len(sample.text)
    for i in rng.sample(range(len(keys)), stage.questions):
        sample.add(question.format(key=keys[i]))
        sample.answers.append(sample.add(ANSWER.format(digits=digits[i])))
    sample.special.append((asked, len(sample.text)))
    return sample
