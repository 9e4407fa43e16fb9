"""What the recipes of scripts/table share: how they call hayloft, and how figures are written."""
import json
import math
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def add_program(parser):
    parser.add_argument("--hayloft", default=ROOT / "build/release/bin/hayloft", help="the program [build/release/bin/hayloft]")


def plans(program, *options):
    """Returns the plans, one a length, that `hayloft plan` makes with these options."""
    said = subprocess.run([program, "plan", *options, "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not said.stdout.lstrip().startswith("{"):
        sys.exit(f"scripts/table: {said.stderr.strip()}")
    return json.loads(said.stdout)["plans"]


def eval_rows(path):
    """Returns the rows of files of `hayloft eval --out`, one behind the other, each with its recipe's `model`; one that was
    cut off is left out."""
    model, rows = None, []
    try:
        with open(path, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith("\n"):  # it was cut off
                    break
                line = json.loads(text)
                if "options" in line:
                    model = line["options"]["model"]
                elif model is None or not {"task", "ctx_size", "attn", "sample", "score"} <= line.keys():
                    raise ValueError(f"line {number} is no row of hayloft eval --out behind its recipe")
                else:
                    rows.append({**line, "model": model})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        sys.exit(f"scripts/table: {path}: {getattr(problem, 'strerror', None) or problem}")
    return rows


def mean(rows, field):
    """Returns the mean over the rows that have the field; None when none has."""
    values = [row[field] for row in rows if row.get(field) is not None]
    return sum(values) / len(values) if values else None


def size(count, form="{:.1f}", below=1024):
    """Writes a number of bytes in the first unit in which it is below that many."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < below:
            return f"{count:.0f} B" if unit == "B" else f"{form.format(count)} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def figure(value, form):
    return "" if value is None else form.format(value)


def interval(share, n):
    """Returns Wilson's 95% interval of a share of n samples, in percent."""
    z = 1.96
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return [100 * max(0.0, (middle - half) / (1 + z * z / n)), 100 * min(1.0, (middle + half) / (1 + z * z / n))]


def print_table(heading, rows, right=()):
    """Prints a Markdown table; `right` has the columns that are aligned to the right."""
    print("| " + " | ".join(heading) + " |")
    print("|" + "".join("---:|" if at in right else "---|" for at in range(len(heading))))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
