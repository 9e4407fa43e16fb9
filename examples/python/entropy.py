"""The entropy of the attention by layer, as in figure 4 of top-k attention (arXiv 2502.06766): where it is low, few positions
hold the softmax.

    python3 examples/python/entropy.py -m smollm2.gguf
"""

import math

from figures import arguments, hayloft, plt, save

options = arguments(__doc__.splitlines()[0], "entropy.png", 2048, 2).parse_args()
model = hayloft.Model(options.model)
_, figures = hayloft.eval(model, "niah_single_1", options.ctx_size, "dense", samples=options.samples,
                          haystack=options.haystack, chat=options.chat, fidelity_steps=0, attention=True)

layers = [layer["layer"] for layer in figures["layers"]]
entropy = [layer["entropy"] for layer in figures["layers"]]
figure, axes = plt.subplots(figsize=(6, 4))
axes.plot(layers, [each["mean"] for each in entropy], marker="o", label="mean")
axes.fill_between(layers, [each["least"] for each in entropy], [each["most"] for each in entropy], alpha=0.2,
                  label="least to most")
axes.axhline(math.log(figures["tokens"]), color="grey", linestyle="--", label="all positions alike")
axes.set_xlabel("layer")
axes.set_ylabel("entropy of a query head's softmax, nats")
axes.legend()
save(figure, options.plot)
