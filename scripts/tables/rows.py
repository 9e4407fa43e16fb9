"""What rows of fewer bits cost, beside llama.cpp's quantised caches: the tables of docs/rows.md.

The first tokens of a text are read, all but the last --steps of them as a prompt; those go in one by one, and the next
token's distribution after each is compared to the one that the same program has with keys and values in f16: the mean
Kullback-Leibler divergence in nats with a 95% interval (bootstrap over steps), the largest, and how often the likeliest
token is the same. llama.cpp says the --top likeliest tokens; the rest of a distribution counts as one, in hayloft's too.
Bytes are those of a token's K and V in one layer, in hayloft with their share of the ranges.

Needs the package hayloft (pip install .) and numpy for the python that runs this, and xllamacpp for PYTHON or the same.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from common import print_table

LLAMA_CPP = """
import json, sys, urllib.request, xllamacpp
query = json.load(sys.stdin)
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = query["model"], len(query["ids"]) + 64, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = query["threads"]
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED  # which quantised V needs
params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + query["type"].upper())
server = xllamacpp.Server(params)
tops = []
for end in range(query["prompt"] + 1, len(query["ids"]) + 1):
    body = {"prompt": query["ids"][:end], "n_predict": 1, "temperature": 0, "cache_prompt": True, "ignore_eos": True,
            "n_probs": query["top"]}
    request = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    step = json.load(urllib.request.urlopen(request))["completion_probabilities"][0]
    tops.append([[t["id"], t["logprob"]] for t in step["top_logprobs"]])
json.dump(tops, open(query["out"], "w"))
"""


def with_rest(ids, p, q):
    """p and q of the ids, logarithms, and what they leave."""
    rest = [np.log(max(1e-12, 1 - np.exp(x).sum())) for x in (p, q)]
    return np.append(p, rest[0]), np.append(q, rest[1])


def divergence(p, q):
    return float((np.exp(p) * (p - q)).sum())


def llama_cpp(options, ids, kind):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        query = {"model": options.model, "ids": ids, "prompt": len(ids) - options.steps, "threads": options.threads,
                 "top": options.top, "type": kind, "out": out.name}
        done = subprocess.run([os.environ.get("PYTHON", sys.executable), "-c", LLAMA_CPP], input=json.dumps(query),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit("scripts/table: llama.cpp: " + (done.stderr.strip().splitlines() or ["failed"])[-1])
        return [dict((int(i), p) for i, p in top) for top in json.load(open(out.name))]


def ours(options, model, ids, rows):
    session = model.session(block_tokens=options.block_tokens, chunk_tokens=512, rows=rows, attn=options.attn)
    session.append(ids[:-options.steps])
    logs = []
    for token in ids[-options.steps:]:
        logits = session.logits(token).astype(np.float64)
        top = logits.max()
        logs.append(logits - top - np.log(np.exp(logits - top).sum()))
    return logs


def compare_ours(options, exact, other):
    found = []
    for p, q in zip(exact, other):
        ids = np.argpartition(-p, options.top)[:options.top]
        found.append((divergence(*with_rest(ids, p[ids], q[ids])), p.argmax() == q.argmax()))
    return found


def compare_theirs(exact, other):
    found = []
    for p, q in zip(exact, other):
        ids = [i for i in p if i in q]  # nearly all of them: what only one of the two names is very unlikely
        a, b = (np.array([x[i] for i in ids]) for x in (p, q))
        found.append((divergence(*with_rest(ids, a, b)), max(p, key=p.get) == max(q, key=q.get)))
    return found


def line(name, size, found):
    kl = np.array([f[0] for f in found])
    random = np.random.default_rng(1)
    means = [random.choice(kl, len(kl)).mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    same = 100 * np.mean([f[1] for f in found])
    return name, size, f"{kl.mean():.5f} ({low:.5f} to {high:.5f})", f"{kl.max():.4f}", f"{same:.0f}"


def add_arguments(parser):
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("-f", "--file", required=True, help="text")
    parser.add_argument("-c", "--tokens", type=int, default=4096, help="of the text [4096]")
    parser.add_argument("--steps", type=int, default=64, help="of them that are compared [64]")
    parser.add_argument("--top", type=int, default=400, help="tokens of a distribution that count one by one [400]")
    parser.add_argument("--block-tokens", type=int, default=1024, help="of hayloft's store [1024]")
    parser.add_argument("--attn", default="dense", help="hayloft's method [dense]")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads of both [processors]")
    parser.add_argument("--theirs", default="q8_0,q4_0", help="llama.cpp's types of K and V [q8_0,q4_0]; '' for none")


def run(options):
    import hayloft

    model = hayloft.Model(options.model)
    text = pathlib.Path(options.file).read_text(encoding="utf-8", errors="replace")
    ids = model.encode(text[:options.tokens * 8])[:options.tokens]
    if len(ids) < options.tokens:
        sys.exit(f"scripts/table: {options.file} has {len(ids)} tokens, not {options.tokens}")
    d, heads = model.config["head_dim"], model.config["kv_heads"]
    print(f"{len(ids)} tokens, {options.steps} steps, {options.attn}\n")
    print_table(("K and V", "bytes of a token", "KL from f16", "largest", "same token, %"),
                lines_of(options, model, ids, heads, d), right=range(1, 5))


def lines_of(options, model, ids, heads, d):
    exact = ours(options, model, ids, "f16")
    for rows, bits, group in (("int8", 8, 64), ("int4", 4, 32)):
        row = -(-(2 * d * bits // 8 + 4 * -(-d // group)) // 8) * 8
        size = heads * (row + 4 * d / min(1024, options.block_tokens))
        yield line(f"hayloft {rows}", f"{size:.0f}", compare_ours(options, exact, ours(options, model, ids, rows)))
    if options.theirs:
        reference = llama_cpp(options, ids, "f16")
        for kind in options.theirs.split(","):
            size = heads * 2 * d * {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18}[kind] // 32
            yield line(f"llama.cpp {kind}", size, compare_theirs(reference, llama_cpp(options, ids, kind)))
