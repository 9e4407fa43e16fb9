"""Methods on the two trained models of scripts/models, beside what they read: runs and tables of docs/compared.md.

  run    hayloft eval, run by run of the list below, rows in FOLDER/NAME.jsonl; goes on where it was stopped.
         Needles are hidden in --book; --prose is predicted, qa_1 asks the questions of --squad. Runs that lack their
         text are left out and named.
  show   Markdown tables of the rows of such files: scores with 95% intervals (Wilson's, or a bootstrap's where
         samples are right in part; of perplexity, none), recall, mass and output error over the first steps of an
         answer, KL from dense attention where it was measured, and bytes read per token.
  equal  of rows that hayloft eval --equal-bytes wrote, a table of scores by the bits that a method reads of each key;
         with --agreement of KL from dense attention, with an interval of 95% (bootstrap over texts), and top-1.
  counts of rows with several --attn-k, the same by how many positions are attended to, of methods that have rows of each.
"""
import math
import pathlib
import random
import re
import subprocess
import sys
from collections import defaultdict

from common import ROOT, add_program, eval_rows, figure, interval, mean, print_table

SMALL = ("dense,topk,ann,sparq:r=8,sparq:r=16,sparq:r=32,lowrank:r=16,pages:page=16,window,h2o")
FAST = ("dense,topk,sparq:r=8,sparq:r=16,sparq:r=32,pages:page=16,window,h2o")  # for long contexts
WIDE = ("dense,topk,ann,sparq:r=16,sparq:r=32,sparq:r=64,lowrank:r=32,pages:page=16,window,h2o")  # d = 256
ALIKE = "dense,topk,planes,sparq,pages,window,h2o"
LONG = "dense,topk,planes,planes:rest=draw,planes:rest=calibrated,sparq,pages"
RESTS = ("dense,topk,topk:rest=draw,planes:rest=none,planes:rest=mean,planes:rest=draw,planes:rest=calibrated,"
         "sparq:rest=none,sparq:rest=mean,sparq:rest=draw,pages,window,h2o")
BITS = (16, 32, 64, 128)
COUNTS = (64, 128, 256, 512)
EQUAL = ["--columns", "planes", "--equal-bytes", ",".join(map(str, BITS)), "--no-recall"]
CHAT = ["--chat-template", "model"]
RUNS = [  # name, model, tasks, lengths, samples (None: --samples), methods, other options
    ("smollm2-4k", "smollm2", "niah_single_1,niah_single_2", "4k", None, SMALL, CHAT),
    ("smollm2-4k-agreement", "smollm2", "niah_single_1,niah_single_2", "4k", 2, SMALL, [*CHAT, "--agreement"]),
    ("smollm2-4k-squad", "smollm2", "qa_1", "4k", None, SMALL, [*CHAT, "--no-recall"]),
    ("smollm2-4k-equal", "smollm2", "niah_single_1,niah_single_2", "4k", None, ALIKE, [*CHAT, *EQUAL]),
    ("gemma3-270m-4k-equal", "gemma3-270m", "niah_single_2", "4k", None, ALIKE, EQUAL),
    ("gemma3-270m-16k-equal", "gemma3-270m", "niah_single_2", "16k", None, LONG, EQUAL),
    ("smollm2-4k-kl", "smollm2", "perplexity", "4k", 5, RESTS, [*EQUAL, "--agreement", "--scored-tokens", "64"]),
    ("smollm2-8k-kl", "smollm2", "perplexity", "8k", 5, RESTS, [*EQUAL, "--agreement", "--scored-tokens", "64"]),
    ("gemma3-270m-4k-kl", "gemma3-270m", "perplexity", "4k", 5, RESTS, [*EQUAL, "--agreement", "--scored-tokens", "64"]),
    ("gemma3-270m-16k-kl", "gemma3-270m", "perplexity", "16k", 5, RESTS, [*EQUAL, "--agreement", "--scored-tokens", "64"]),
    ("smollm2-8k", "smollm2", "niah_single_1,niah_single_2", "8k", None, FAST, CHAT),
    ("gemma3-270m-prose", "gemma3-270m", "perplexity", "32k", 1, WIDE, ["--agreement"]),
    ("gemma3-270m", "gemma3-270m", "niah_single_2", "4k,16k,32k", 3, WIDE, []),
]


def measure(args):
    texts = {"niah": ("--haystack", args.book), "perplexity": ("--text", args.prose), "qa": ("--squad", args.squad)}
    for name, model, tasks, lengths, samples, methods, others in RUNS:
        option, file = next(text for kind, text in texts.items() if tasks.startswith(kind))
        if not file:
            print(f"{name}: left out, it needs a text ({option})", file=sys.stderr)
            continue
        path = subprocess.run([ROOT / "scripts/models", model], check=True, stdout=subprocess.PIPE, text=True)
        subprocess.run([args.hayloft, "eval", "-m", path.stdout.strip(), "--tasks", tasks, "-c", lengths, "--samples",
                        str(samples or args.samples), "--attn", methods, "--attn-k", "128", "--block-tokens", "128",
                        "-t", "1", option, file, *others, "--out", args.folder / f"{name}.jsonl"], check=True)


def score(rows):
    if rows[0]["measure"] == "perplexity":
        return f"{math.exp(sum(math.log(row['score']) for row in rows) / len(rows)):.2f}"
    if rows[0]["measure"] != "share":
        return f"{mean(rows, 'score'):.3g}"
    share = mean(rows, "score")
    scores = [row["score"] for row in rows]
    low, high = interval(share, len(rows)) if set(scores) <= {0, 1} else [100 * end for end in resampled(scores)]
    return f"{100 * share:.0f} ({low:.0f} to {high:.0f})"


def resampled(values):
    """Returns the 95% interval of the mean, by a bootstrap of the values."""
    draw = random.Random(1)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(4000))
    return means[100], means[-101]


def mebibytes(value):
    return figure(value and value / 2**20, "{:.2f} MiB")


def read(files):
    """Rows by sample, by method, by model, task, length and way of reading."""
    groups = defaultdict(lambda: defaultdict(dict))  # model, task, length, reading; method; sample
    for file in files:
        for row in eval_rows(file):
            model = row["model"].removesuffix(".gguf")
            samples = groups[model, row["task"], row["ctx_size"], row.get("prefill", "exact")][row["attn"]]
            known = samples.setdefault(row["sample"], row)  # the same sample with and without --agreement is one
            known.update((key, value) for key, value in row.items() if known.get(key) is None)
    for (model, task, length, reading), by_method in groups.items():
        methods = {label: list(samples.values()) for label, samples in by_method.items()}
        samples = max(len(rows) for rows in methods.values())
        way = "" if reading == "exact" else f", read {reading}"
        yield f"{model}, `{task}`, {length:,} tokens, {samples} sample{'s' * (samples > 1)}{way}", methods


def equal(args):
    for title, methods in read(args.files):
        print(f"\n{title}\n")
        sizes = defaultdict(list)  # by name, in the order of the bits; those too small for a method were left out
        for rows in methods.values():
            method = rows[0]["method"]
            sizes[method["name"] + (f" rest={method['rest']}" if method.get("rest") else "")].append(rows)
        lines = []
        for name, of in sizes.items():
            if name.startswith(("dense", "topk")):
                told = [f"{agreement(of[0])}, every bit"] + [""] * (len(args.bits) - 1)
            else:
                told = [""] * (len(args.bits) - len(of)) + [f"{agreement(rows)}, {setting(rows[0])}" for rows in of]
            lines.append((name, *told))
        print_table(("method", *(f"{bits} bits" for bits in args.bits)), lines, right=range(1, 9))


def counts(args):
    for title, methods in read(args.files):
        print(f"\n{title}\n")
        by_count = defaultdict(dict)  # by label without its k
        for label, rows in methods.items():
            by_count[re.sub(r" k=\d+", "", label)][rows[0]["k"]] = agreement(rows)
        dense = by_count.pop("dense", None)
        if dense:
            print(f"`dense`: {next(iter(dense.values()))}\n")
        print_table(("method", *(f"k = {k}" for k in COUNTS)),
                    [(label, *(of[k] for k in COUNTS)) for label, of in by_count.items() if of.keys() >= set(COUNTS)],
                    right=range(1, len(COUNTS) + 1))


def agreement(rows):
    """Returns KL from dense attention with its interval, and top-1, where they were measured, else the score."""
    kl = [row["kl"] for row in rows if row.get("kl") is not None]
    if not kl:
        return score(rows)
    low, high = resampled(kl)
    return f"{sum(kl) / len(kl):.4f} ({low:.4f} to {high:.4f}), {mean(rows, 'top1'):.3f}"


def setting(row):
    """Returns the option that sets a method's size."""
    name = {"planes": "bits", "sparq": "r", "pages": "page"}.get(row["method"]["name"], "k")
    return f"{name}={row['method'][name] if name != 'k' else row['k']}"


def show(args):
    for title, methods in read(args.files):
        print(f"\n{title}\n")
        print_table(
            ("method", "score", "recall", "mass", "error", "KL", "attended", "near", "link"),
            [(label, score(of), *(figure(mean(of, field), "{:.3f}") for field in ("recall", "mass", "output_error")),
              figure(mean(of, "kl"), "{:.4f}"), f"{100 * mean(of, 'attended_share'):.1f}%",
              mebibytes(mean(of, "near_bytes_per_token")), mebibytes(mean(of, "link_bytes_per_token")))
             for label, of in methods.items()], right=range(1, 9))


def add_arguments(parser):
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run")
    runs.add_argument("folder", type=pathlib.Path)
    runs.add_argument("--book", help="text that needles are hidden in")
    runs.add_argument("--prose", help="text that is predicted")
    runs.add_argument("--squad", help="questions of qa_1")
    runs.add_argument("--samples", type=int, default=20, help="of each RULER task at each length [20]")
    add_program(runs)
    runs.set_defaults(call=measure)
    for name, call in (("show", show), ("equal", equal), ("counts", counts)):
        shows = commands.add_parser(name)
        shows.add_argument("files", nargs="+", metavar="ROWS.jsonl")
        shows.set_defaults(call=call)
        if call is equal:
            shows.add_argument("--bits", type=lambda text: text.split(","), default=BITS,
                               help="the --equal-bytes of the rows [16,32,64,128]")


def run(args):
    args.call(args)
