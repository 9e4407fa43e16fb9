"""The table and the picture of docs/cluster.md: what a token costs over ranks, by `hayloft plan`.

Everything is predicted: messages and bytes by the formulas that ledgers are held to, times by two networks that nobody has
measured, and the reading of a rank's own shard by its bytes over a rate. The picture needs matplotlib.
"""
import pathlib

from common import add_program, plans as planned, print_table, size

RANKS = (2, 4, 8, 16, 32, 64)
NETWORKS = {"10 Gbit/s, 30 µs": "10,30", "100 Gbit/s, 5 µs": "100,5"}
LENGTHS = {"4M": 4 << 20, "16M": 16 << 20, "100M": 100 << 20}
METHODS = ("dense", "topk:k=512", "sparq:k=512", "sparq:k=512:group=logits")
HOST_RATE = 100  # GB/s at which a rank reads its own shard: eight channels of DDR4, or two of DDR5-6400
SHAPE = "32,32,8,128"  # Llama 3 8B
LOOKS = {  # colour of the family, dashes
    "dense": ("#222222", "-"),
    "topk:k=512": ("#0072b2", "-"),
    "sparq:k=512": ("#009e73", "-"),
    "sparq:k=512:group=logits": ("#009e73", "--"),
}


def plans_of(program):
    """By network and ranks, by length: the plan."""
    return {(name, ranks): dict(zip(LENGTHS, planned(program, "--shape", SHAPE, "--device", "cpu", "--ranks", str(ranks),
                                                     "--network", network, "-c", ",".join(LENGTHS), "--attn",
                                                     ",".join(METHODS)), strict=True))
            for name, network in NETWORKS.items() for ranks in RANKS}


def lines_of(plans):
    slow, fast = NETWORKS
    for ranks in RANKS:
        cells = [size(plan["bytes"]["host_rows"] + plan["bytes"]["host_columns"]) for plan in plans[slow, ranks].values()]
        for at in range(len(METHODS)):
            network, faster = (plans[each, ranks]["4M"]["methods"][at]["network"] for each in (slow, fast))
            received = network["received_bytes_per_token"] + (ranks - 1) * network["further_sent_bytes_per_token"]
            cells.append(f"{received / 2**20:.1f} MiB, {network['ms_per_token']:.1f} / {faster['ms_per_token']:.1f} ms")
        yield ranks, *cells


def draw(plans, path):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "hayloft", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True)
    for panel, network in zip(panels, NETWORKS, strict=True):
        for at, method in enumerate(METHODS):
            colour, dashes = LOOKS[method]
            times = [plans[network, ranks]["100M"]["methods"][at]["network"]["ms_per_token"] for ranks in RANKS]
            panel.plot(RANKS, times, dashes, color=colour, marker="o", markersize=4, label=f"network, {method}")
        for at, method in ((0, "dense"), (2, "sparq:k=512")):
            reads = [plans[network, ranks]["100M"]["methods"][at]["bytes_per_token"] / ranks / HOST_RATE / 1e6
                     for ranks in RANKS]
            panel.plot(RANKS, reads, ":", color=LOOKS[method][0], marker="^", markersize=4,
                       label=f"own shard of 100M, {method}")
        panel.set_title(network)
        panel.set_xscale("log", base=2)
        panel.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
        panel.set_yscale("log")
        panel.set_xlabel("ranks")
        panel.grid(color="#e6e6e6")
        panel.set_axisbelow(True)
    panels[0].set_ylabel("ms a token, predicted")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def add_arguments(parser):
    add_program(parser)
    parser.add_argument("--plot", type=pathlib.Path, help="draws the picture into this file")


def run(args):
    plans = plans_of(args.hayloft)
    print_table(("ranks", *(f"of {length}" for length in LENGTHS), *(f"`{method}`" for method in METHODS)), lines_of(plans),
                right=range(1 + len(LENGTHS)))
    if args.plot:
        draw(plans, args.plot)
