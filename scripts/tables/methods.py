"""Every attention method on the bundled needle model: the runs, tables and picture of docs/compared.md.

  run ROWS.jsonl               asks for 11 needles at depths of 0 to 100% of one context per length, by every method;
                               goes on where it was stopped
  show ROWS.jsonl              prints the tables
  plot ROWS.jsonl PICTURE.svg  draws quality (-log10 of the KL divergence from dense attention) against bytes read per
                               token, with the Pareto front
"""
import subprocess
import sys
from collections import defaultdict

from common import add_program, eval_rows, figure, mean, print_table, size

METHODS = [
    "dense",
    "flexgen",
    "oracle",
    "topk:k=32",
    "topk",
    "sparq:r=4",
    "sparq:r=8",
    "sparq",
    "sparq:r=32",
    "lowrank:r=8",
    "lowrank",
    "lowrank:r=32",
    "pages:page=16",
    "pages:k=512",
    "ann",
    "ann:aware=off",
    "ann:IVF1024,SQ8:rerank=4",
    "ann:IVF1024,PQ16:rerank=8",
    "ann:HNSW32,Flat",
    "window",
    "window:k=4096",
    "h2o",
    "h2o:k=4096",
]
SLOW_TO_BUILD = ["ann:HNSW32,Flat:aware=off"]  # raw inner products make a poor graph: up to 64k only


def command(args, lengths):
    call = [args.hayloft, "eval", "--tasks", "depths", "--digits", "6", "--samples", "11", "--agreement"]
    call += ["--device", "cpu", "-c", lengths, "--out", args.rows]
    for method in METHODS + (SLOW_TO_BUILD if lengths == "64k" else []):
        call += ["--attn", method]
    return call


def measure(args):
    for length in args.lengths.split(","):
        subprocess.run(command(args, length), check=True, stdout=subprocess.DEVNULL)


def plot(args):
    # Nothing is left to be done but the picture.
    subprocess.run(
        command(args, args.lengths) + ["--plot", args.picture, "--plot-by", "kl"], check=True, stdout=subprocess.DEVNULL
    )


def show(args):
    lengths = defaultdict(lambda: defaultdict(list))
    for row in eval_rows(args.rows):
        lengths[row["ctx_size"]][row["attn"]].append(row)
    for length in sorted(lengths):
        print(f"\n### {length:,} tokens\n")
        lines = []
        for method, group in lengths[length].items():
            built = mean(group, "state_bytes")
            lines.append((method, f"{sum(row['score'] for row in group):.0f}/{len(group)}",
                          figure(mean(group, "recall"), "{:.3f}"), figure(mean(group, "mass"), "{:.3f}"),
                          figure(mean(group, "output_error"), "{:.3f}"), figure(mean(group, "kl"), "{:.1e}"),
                          size(mean(group, "near_bytes_per_token"), "{:.3g}", 1000),
                          size(mean(group, "link_bytes_per_token"), "{:.3g}", 1000), f"{mean(group, 'ms_per_token'):.2f}",
                          figure(mean(group, "prepare_seconds") if built else None, "{:.1f}"),
                          size(built, "{:.3g}", 1000) if built else ""))
        print_table(("method", "hits", "recall", "mass", "error", "KL", "near", "link", "ms/token", "build s", "memory"),
                    lines, right=range(1, 11))


def add_arguments(parser):
    parser.add_argument("task", choices=["run", "show", "plot"])
    parser.add_argument("rows", metavar="ROWS.jsonl")
    parser.add_argument("picture", nargs="?", metavar="PICTURE.svg")
    parser.add_argument("-c", dest="lengths", default="64k,256k,1M", help="of the contexts [64k,256k,1M]")
    add_program(parser)


def run(args):
    if args.task == "plot" and not args.picture:
        sys.exit("scripts/table: methods: plot needs a PICTURE.svg")
    {"run": measure, "show": show, "plot": plot}[args.task](args)
