"""The README's table and picture: the bytes of a token between card, link and loft, of rows that `hayloft eval` wrote.

Rows of one task at one length, read exactly, count, means over its samples. The picture needs no package; it is readable on light and
dark pages alike, whatever the viewer prefers.
"""
import pathlib
import sys

from common import eval_rows, mean, print_table

METHODS = ("dense", "sparq r=16 k=128", "topk k=128", "window k=128")
SAID = {  # what a method reads, in a line of the picture
    "dense": "everything",
    "sparq": "16 of each key's 64 components, then 128 rows",
    "topk": "128 rows, found by a search in the loft",
    "window": "the first and the newest rows alone",
}
WIDTH, HEIGHT, LEFT, RIGHT = 900, 392, 186, 676  # the link lies between LEFT and RIGHT
THICKEST = 64  # pixels of a token's bytes by dense attention; the others to scale, one pixel at least

STYLE = """<style>
.page { fill: #ffffff } .box { fill: #f2f5f7; stroke: #9aa5ad } .ink { fill: #1f2a30 } .faint { fill: #57646c }
.cell { fill: #d3dce2 } .read { fill: #c2600f } .dense { fill: #56707e }
@media (prefers-color-scheme: dark) {
.page { fill: #11181d } .box { fill: #1b252b; stroke: #5b6a73 } .ink { fill: #eef3f5 } .faint { fill: #a9b6bd }
.cell { fill: #33424b } .read { fill: #f2954a } .dense { fill: #8fa9b6 }
}
</style>"""


def mebibytes(count):
    return f"{count / 2**20:.1f} MiB" if count else "0"


def text(x, y, words, size=13, kind="ink", anchor="start", bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" font-size="{size}" text-anchor="{anchor}"{weight}>{words}</text>'


def box(x, y, width, height, kind, corner=0):
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{corner}" class="{kind}"/>'


def cells(kind_of):
    """The loft's keys and values, a cell for a few hundred tokens each."""
    return [box(RIGHT + 14 + 18 * column, 150 + 18 * row, 14, 14, kind_of(row * 10 + column))
            for row in range(10) for column in range(10)]


def lane(y, label, link, most):
    """An arrow from loft to card, as thick as a token's bytes, with what it is above it."""
    thick, kind = max(1, THICKEST * link / most), "dense" if label == "dense" else "read"
    top, head = y + 18, max(5, thick / 2 + 4)
    middle = top + thick / 2
    arrow = (f'<path class="{kind}" d="M{RIGHT - 8} {top:g} H{LEFT + 8 + head:g} V{middle - head:g} L{LEFT + 8} {middle:g} '
             f'L{LEFT + 8 + head:g} {middle + head:g} V{top + thick:g} H{RIGHT - 8} Z"/>')
    return [arrow, text(LEFT + 22, y + 4, f"{label.split()[0]}: {SAID[label.split()[0]]}", 12, "faint"),
            text(RIGHT - 12, y + 4, mebibytes(link), 13, "ink", "end", True)], y + 18 + thick + 26


def picture(rows, tokens):
    most = mean(rows["dense"], "link_bytes_per_token")
    parts = [box(0, 0, WIDTH, HEIGHT, "page", 10),
             text(20, 30, f"What one token of a text of {tokens:,} tokens reads", 16, bold=True),
             text(20, 50, "SmolLM2-135M-Instruct, bytes counted while it answers; arrows are to scale", 12, "faint"),
             box(20, 72, LEFT - 20, HEIGHT - 92, "box", 8), box(RIGHT, 72, WIDTH - RIGHT - 20, HEIGHT - 92, "box", 8),
             text(LEFT / 2 + 10, 100, "card", 15, anchor="middle", bold=True),
             text((LEFT + RIGHT) / 2, 88, "link (PCIe)", 15, anchor="middle", bold=True),
             text((RIGHT + WIDTH - 20) / 2, 100, "loft", 15, anchor="middle", bold=True)]
    for at, words in enumerate(("weights", "the newest tokens", "attention")):
        parts.append(text(LEFT / 2 + 10, 128 + 20 * at, words, 12, "faint", "middle"))
    for at, words in enumerate(("host memory: keys and", "values of all tokens")):
        parts.append(text((RIGHT + WIDTH - 20) / 2, 120 + 17 * at, words, 12, "faint", "middle"))
    parts += cells(lambda number: "read" if number % 17 == 5 else "cell")
    y = 116
    for label in METHODS:
        added, y = lane(y, label, mean(rows[label], "link_bytes_per_token"), most)
        parts += added
    searched = mebibytes(mean(rows["topk k=128"], "near_bytes_per_token"))
    parts.append(text((RIGHT + WIDTH - 20) / 2, 352, f"topk searches {searched} here", 12, "faint", "middle"))
    told = ", ".join(f"{label} {mebibytes(mean(rows[label], 'link_bytes_per_token'))}" for label in METHODS)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" role="img">\n<title>Over the link, for one '
            f"token: {told}</title>\n{STYLE}\n" + "\n".join(parts) + "\n</svg>\n")


def add_arguments(parser):
    parser.add_argument("rows", metavar="ROWS.jsonl")
    parser.add_argument("--task", default="niah_single_1", help="whose rows count [niah_single_1]")
    parser.add_argument("--tokens", type=int, default=8192, help="of the contexts [8192]")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.svg", help="draws the picture into this file")


def run(args):
    rows = {label: [] for label in METHODS}
    for row in eval_rows(args.rows):
        asked = row["task"] == args.task and row["ctx_size"] == args.tokens and row.get("prefill", "exact") == "exact"
        if asked and row["attn"] in rows:
            rows[row["attn"]].append(row)
    if missing := [label for label, of in rows.items() if not of]:
        sys.exit(f"scripts/table: {args.rows}: no row of {', '.join(missing)} at {args.tokens} tokens of {args.task}")
    print_table(("attention", "found", "attended", "over the link", "searched in the loft"),
                [(f"`{label.replace(' ', ':')}`",
                  f"{sum(row['score'] for row in of):.0f} of {len(of)}", f"{100 * mean(of, 'attended_share'):.1f}%",
                  mebibytes(mean(of, "link_bytes_per_token")), mebibytes(mean(of, "near_bytes_per_token")))
                 for label, of in rows.items()], right=range(1, 5))
    if args.plot:
        args.plot.write_text(picture(rows, args.tokens), encoding="utf-8")
