"""Tables of one run's results, as docs/needle.md and bench/results show them.

FILE is what hayloft needle, bench or link wrote by --json, or a gpu-check.json, of which every step has its table.
"""
import json
import sys

from common import mean, print_table, size


def label(row):
    if "method" in row:  # with all of its options; earlier files lack it
        return row["method"]
    parts = [row["attn"]]
    parts += [f"r={row['r']}"] if row["r"] is not None else []
    parts += [f"k={row['k']}"] if row["k"] is not None else []
    return " ".join(parts)


def attended_to_most(group):
    """Whether a method other than dense attention attended to half of the context or more."""
    return group[0]["attn"] != "dense" and sum(row.get("attended_share", 0) for row in group) / len(group) >= 0.5


def needle_table(rows, complete):
    groups = {}
    for row in rows:  # those of a method do not follow each other where every needle has a context of its own
        groups.setdefault((row["tokens"], label(row)), []).append(row)
    lines = []
    marked = False
    for (tokens, name), group in groups.items():
        marked |= attended_to_most(group)
        lines.append(
            (
                f"{tokens:,}",
                name + (" *" if attended_to_most(group) else ""),
                f"{sum(row['hit'] for row in group)} of {len(group)}",
                f"{mean(group, 'decode_ms_per_token'):.1f}",
                size(mean(group, "link_bytes_per_token")),
                size(mean(group, "near_bytes_per_token")),
            )
        )
    print_table(("tokens", "attention", "found", "ms/token", "link per token", "near per token"), lines)
    if marked:
        print("\n\\* attended to half of the context or more, so its figures are near those of dense attention")
    if not complete:
        print("\nThe run was stopped before its end: rows are missing.")


def bench_table(bench):
    lines = []
    for row in bench["rows"]:
        parts = row.get("stage_ms") or {}
        lines.append(
            (
                f"{row['tokens']:,}",
                row["columns"],
                row["attn"],
                bench["link"] or "",
                f"{row['ms_per_token']:.2f}",
                ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items()),
                f"{row['floor_ms']:.2f}" if "floor_ms" in row else "",
                f"{row['measured_layers']} of {bench['layers']}",
            )
        )
    print_table(("tokens", "columns", "attention", "link by", "ms/token", "of which", "floor ms", "layers"), lines)


def link_table(link):
    lines = []
    for f in link["figures"]:
        piece = f"{f['piece_bytes']} B" if f["piece_bytes"] else ""
        node = f["node"] if f["node"] >= 0 else ""
        lines.append(
            (f["test"], f["engine"], size(f["page_bytes"]) if f["page_bytes"] else "", node,
             size(f["footprint_bytes"]) if f["footprint_bytes"] else "", piece, f["order"],
             f"{f['value']:.4g} {f['unit']}")
        )
    print_table(("test", "by", "pages", "node", "footprint", "piece", "order", "value"), lines)
    if link["skipped"]:
        print()
    for what in link["skipped"]:
        print(f"- skipped: {what}")


def table_of(data, lengths):
    """The function that prints the table of what a subcommand wrote; None when it has none."""
    rows = [row for row in data.get("rows", []) if not lengths or row["tokens"] in lengths]
    if data.get("schema") == "hayloft.needle/1":
        return lambda: needle_table(rows, data.get("complete", True))
    if data.get("schema") == "hayloft.bench/1":
        return lambda: bench_table({**data, "rows": rows})
    if data.get("link"):
        return lambda: link_table(data["link"])
    return None


def gpu_check(report, lengths):
    print(f"{report['gpu'] or report['device']}; {report['processor']}, {report['processors']} processors, {report['memory']}\n")
    print_table(
        ("what the run must show", "figure", "wanted", "verdict"),
        [(s["what"], s["figure"], s["wanted"], s["verdict"]) for s in report.get("shows", [])],
    )
    for step in report["steps"]:
        table = table_of(step["data"] or {}, lengths)
        print(f"\n**{step['step']}**: {step['outcome']} in {step['seconds']} s")
        if table:
            print()
            table()


def count(text):
    """A number of tokens as hayloft takes it: 4096, 64k, 1M."""
    power = "kMG".find(text[-1:]) + 1
    return int(text[:-1] if power else text) << 10 * power


def lengths(text):
    return [count(part) for part in text.split(",")]


def add_arguments(parser):
    parser.add_argument("--tokens", type=lengths, metavar="LENGTH,...", default=[],
                        help="only rows of these context lengths, as in 64k,1M")
    parser.add_argument("file", metavar="FILE")


def run(args):
    try:
        with open(args.file, encoding="utf-8") as file:
            results = json.load(file)
    except (OSError, ValueError) as problem:
        sys.exit(f"scripts/table: {args.file}: {getattr(problem, 'strerror', None) or problem}")
    if not isinstance(results, dict):
        results = {}
    if results.get("schema") == "hayloft.gpu-check/1":
        return gpu_check(results, args.tokens)
    table = table_of(results, args.tokens)
    if not table:
        sys.exit(f"scripts/table: {args.file}: no figures of hayloft needle, bench, link or gpu-check in it")
    table()
