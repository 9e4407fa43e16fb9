"""Needles in a haystack, method by method: which depths are found at which lengths.

    python3 examples/python/needles.py -m examples/needle-model/model --lengths 4096,16384,65536
"""

import numpy as np
from figures import arguments, hayloft, plt, save

parser = arguments(__doc__.splitlines()[0], "needles.png", 0, 0)
parser.add_argument("--lengths", default="4096,16384,65536", help="tokens of context [4096,16384,65536]")
parser.add_argument("--attn", default="dense,sparq,window", help="methods, with commas between them [dense,sparq,window]")
parser.add_argument("--needles", type=int, default=11, help="evenly from 0%% to 100%% of the context [11]")
parser.add_argument("--digits", type=int, default=6, help="of a needle; the bundled model knows six [6]")
options = parser.parse_args()
lengths = [int(length) for length in options.lengths.split(",")]
methods = options.attn.split(",")

model = hayloft.Model(options.model, positions=max(lengths))
rows = hayloft.eval(model, "depths", lengths, methods, samples=options.needles, needles=options.needles,
                    digits=options.digits, haystack=options.haystack, fidelity_steps=0)

figure, all_axes = plt.subplots(1, len(methods), figsize=(3 * len(methods) + 1, 4), sharey=True, squeeze=False)
depths = sorted({row["depth"] for row in rows})
for axes, name in zip(all_axes[0], methods):
    found = np.full((len(depths), len(lengths)), np.nan)
    for row in rows:
        if row["method"]["name"] == name:
            found[depths.index(row["depth"]), lengths.index(row["ctx_size"])] = row["score"]
    axes.imshow(found, cmap="RdYlGn", vmin=0, vmax=1, aspect="auto")
    axes.set_title(name)
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45)
    axes.set_yticks(range(len(depths)), [f"{depth:.0f}%" for depth in depths])
    axes.set_xlabel("tokens")
all_axes[0][0].set_ylabel("depth of the needle")
save(figure, options.plot)
