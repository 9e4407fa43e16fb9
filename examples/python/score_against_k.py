"""How a task's score grows with the number of positions that are attended: the figures of top-k attention (arXiv
2502.06766), for any method with k.

    python3 examples/python/score_against_k.py -m smollm2.gguf --chat
"""

from figures import arguments, hayloft, plt, save

parser = arguments(__doc__.splitlines()[0], "score.png", 2048, 5)
parser.add_argument("--task", default="niah_single_1", help="one of RULER's tasks [niah_single_1]")
parser.add_argument("--attn", default="topk,sparq", help="methods, with commas between them [topk,sparq]")
parser.add_argument("--k", default="4,16,64,256", help="positions attended [4,16,64,256]")
options = parser.parse_args()
budgets = [int(k) for k in options.k.split(",")]

model = hayloft.Model(options.model)
methods = [f"{name}:k={k}" for name in options.attn.split(",") for k in budgets]
rows = hayloft.eval(model, options.task, options.ctx_size, ["dense", *methods], samples=options.samples,
                    haystack=options.haystack, chat=options.chat, fidelity_steps=0, block_tokens=64)


def score(name, k=None):
    scores = [row["score"] for row in rows if row["method"]["name"] == name and k in (None, int(row["method"]["k"]))]
    return sum(scores) / len(scores)


figure, axes = plt.subplots(figsize=(6, 4))
for name in options.attn.split(","):
    axes.plot(budgets, [score(name, k) for k in budgets], marker="o", label=name)
axes.axhline(score("dense"), color="grey", linestyle="--", label="dense")
axes.set_xscale("log", base=2)
axes.set_xlabel("k, besides the newest tokens, which lie in the tail")
axes.set_ylabel(f"score on {options.task}, {options.ctx_size} tokens")
axes.set_ylim(-0.02, 1.02)
axes.legend()
save(figure, options.plot)
