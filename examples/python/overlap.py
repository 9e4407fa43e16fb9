"""How many of the positions with the largest scores are found by r components of the query: SparQ's figure of top-k overlap
against r (arXiv 2312.04985), on any model.

    python3 examples/python/overlap.py -m smollm2.gguf
"""

from figures import arguments, hayloft, plt, save

options = arguments(__doc__.splitlines()[0], "overlap.png", 2048, 2).parse_args()
model = hayloft.Model(options.model)
_, figures = hayloft.eval(model, "niah_single_1", options.ctx_size, "dense", samples=options.samples,
                          haystack=options.haystack, chat=options.chat, fidelity_steps=0, attention=True)

figure, axes = plt.subplots(figsize=(6, 4))
ranks = sorted({entry["r"] for entry in figures["layers"][0]["agreement"]})
for k in sorted({entry["k"] for entry in figures["layers"][0]["agreement"]}):
    means = [[entry["mean"] for layer in figures["layers"] for entry in layer["agreement"]
              if (entry["r"], entry["k"]) == (r, k)] for r in ranks]
    axes.plot(ranks, [sum(each) / len(each) for each in means], marker="o", label=f"k = {k}")
axes.set_xlabel(f"components of the query, of {model.config['head_dim']}")
axes.set_ylabel("share of the exact top k")
axes.set_ylim(0, 1)
axes.legend()
save(figure, options.plot)
