"""Two machines side by side, from profiles or from what `hayloft link --json` wrote: docs/pcie.md.

Every figure that both files have, in the order of the first, and their ratio, above 1 where the second is faster, in times
as in rates. "within the spread" are figures whose turns overlap, so that another run may say otherwise; "unreliable" those
of fewer than 4 turns, or of turns more than a quarter apart. Figures that one of them lacks are named below.
"""
import json
import sys

from common import print_table, size

UNITS = {"_GBps": "GB/s", "_GFLOPps": "GFLOP/s", "_us": "us"}  # of a field by its ending
TIMES = ("us", "ns")


def turns(figure):
    """Returns the slowest and the fastest turn of a link's figure, and whether they lie far apart."""
    if not figure.get("runs"):
        return None
    slowest, fastest = figure["slowest"], figure["fastest"]
    return slowest, fastest, abs(fastest - slowest) > 0.25 * figure["value"]


def spread_turns(spread, value, unit):
    """Returns the same of a profile's spread, which is relative and of rates: the slowest turn takes the longest."""
    slowest, fastest = ((value / spread[key] if unit in TIMES else value * spread[key]) for key in ("slowest", "fastest"))
    return slowest, fastest, spread["runs"] < 4 or spread["high"] - spread["low"] > 0.25


def profile_figures(profile):
    """Yields name, unit, value and turns of what a profile has."""
    spreads = {}
    for spread in profile.get("spreads", []):
        key = spread["what"], spread.get("head_dim", 0), spread.get("group", 0), spread.get("small", False)
        spreads.setdefault(key, []).append(spread)

    def figure(name, unit, value, key):
        found = spreads.get(key, [])
        spread = found[0] if found else None
        if key[0] == "near_reads" and found:  # these have theirs in turn
            found.pop(0)
        return name, unit, value, spread and spread_turns(spread, value, unit)

    def rates(entry, detail, *key):
        for field, value in entry.items():
            ending = next((ending for ending in UNITS if field.endswith(ending)), None)
            if ending and isinstance(value, (int, float)) and value > 0:
                once = field == "ann_search_GBps"  # for every group and footprint
                yield figure(field.removesuffix(ending).replace("_", " ") + detail, UNITS[ending], value,
                             (field, key[0], 0, False) if once else (field, *key))

    yield from rates(profile, "", 0, 0, False)
    for read in profile.get("near_reads", []):
        yield figure(f"near read, node {read['node']}, threads {read['threads']}", "GB/s", read["GBps"],
                     ("near_reads", 0, 0, False))
    for name, small in (("attention", False), ("attention_small", True)):
        for entry in profile.get(name, []):
            d, group = entry["head_dim"], entry["group"]
            yield from rates(entry, f", d={d}, group {group}{', little memory' if small else ''}", d, group, small)


def link_figures(link):
    for figure in link.get("figures", []):
        details = [figure["test"], figure.get("engine"),
                   size(figure["page_bytes"]) + " pages" if figure.get("page_bytes") else "",
                   f"node {figure['node']}" if figure.get("node", -1) >= 0 else "",
                   size(figure["footprint_bytes"]) if figure.get("footprint_bytes") else "",
                   f"{figure['piece_bytes']} B" if figure.get("piece_bytes") else "", figure.get("order")]
        if figure["value"] > 0:
            yield ", ".join(filter(None, details)), figure["unit"], figure["value"], turns(figure)


def read(path):
    """Returns what the file calls its machine, and its figures by name and unit."""
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
    except (OSError, ValueError) as problem:
        sys.exit(f"scripts/table: {path}: {getattr(problem, 'strerror', None) or problem}")
    said = said if isinstance(said, dict) else {}
    link = said.get("link") if isinstance(said.get("link"), dict) else {}
    profile = said if said.get("schema") == "hayloft.profile/1" else {}
    if not profile and not link:
        sys.exit(f"scripts/table: {path}: is neither a machine profile nor what hayloft link --json wrote")
    name = [said.get("host"), said.get("processor") or said.get("machine"), link.get("device"), said.get("date")]
    try:
        figures = [*profile_figures(profile), *link_figures(link)]
    except (KeyError, TypeError, ZeroDivisionError) as problem:
        sys.exit(f"scripts/table: {path}: a figure in it is not as hayloft link writes it: {problem!r}")
    return ", ".join(filter(None, name)) or path, {(name, unit): (value, turn) for name, unit, value, turn in figures}


def remark(a, b):
    if (a and a[2]) or (b and b[2]):
        return "unreliable"
    return "within the spread" if a and b and min(a[:2]) <= max(b[:2]) and min(b[:2]) <= max(a[:2]) else ""


def add_arguments(parser):
    parser.add_argument("a", metavar="A.json")
    parser.add_argument("b", metavar="B.json")


def run(args):
    (first, of_a), (second, of_b) = read(args.a), read(args.b)
    print(f"A: {first}\nB: {second}\n")
    print_table(("what", "A", "B", "", "B over A", ""),
                [(name, f"{a:.4g}", f"{of_b[name, unit][0]:.4g}", unit,
                  f"{(a / of_b[name, unit][0] if unit in TIMES else of_b[name, unit][0] / a):.2f}",
                  remark(turn, of_b[name, unit][1]))
                 for (name, unit), (a, turn) in of_a.items() if (name, unit) in of_b], right=range(1, 6))
    print("\nA ratio above 1 says that B is faster, in times as in rates.")
    for name, ours, others in (("A", of_a, of_b), ("B", of_b, of_a)):
        if missing := [what for what, unit in ours if (what, unit) not in others]:
            print(f"\nonly in {name}: {'; '.join(missing)}")
