"""What Faiss indices find and look at, from runs of `hayloft needle --json`.

A row per method, means over its questions. "keys compared" is the share of the context that each query head had to be
compared with; for ann the counter adds up the query heads, of which --query-heads says how many the model has.
"""
import json

from common import mean, print_table


def add_arguments(parser):
    parser.add_argument("runs", nargs="+", metavar="NEEDLE.json")
    parser.add_argument("--query-heads", type=int, default=4, help="times global layers [4, the bundled model]")


def run(args):
    groups = {}
    for file in args.runs:
        with open(file, encoding="utf-8") as text:
            for row in json.load(text)["rows"]:
                if row["attn"] == "ann":
                    groups.setdefault((row["tokens"], row["method"]), []).append(row)
    lines = []
    for (tokens, method), rows in groups.items():
        share = mean(rows, "positions_scored_per_token") / (args.query_heads * tokens)
        build = max(row["prepare_seconds"] for row in rows)
        lines.append((tokens, method, f"{sum(row['hit'] for row in rows)}/{len(rows)}", f"{mean(rows, 'recall'):.3f}",
                      f"{share:.2%}", f"{mean(rows, 'near_bytes_per_token') / 2**20:.2f} MiB",
                      f"{build:.1f} s" if build > 0.01 else "shared", f"{mean(rows, 'state_bytes') / 2**20:.1f} MiB"))
    print_table(("tokens", "attention", "found", "recall", "keys compared", "near per token", "build", "index"), lines)
