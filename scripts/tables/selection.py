"""Methods that read equally many bits of every key, on queries, keys and values of a trained model (docs/compared.md).

  capture  runs the model of a GGUF file by transformers over TOKENS tokens of TEXT and keeps K and V of its global layers
           and 12 queries of each: spread over the last quarter; with --ruler those of the question at the end of a prompt
           like RULER's niah_single_2, four needles in TEXT. Needs torch, transformers and gguf.
  measure  attends with each of the queries to all tokens up to its own by hayloft.attend, and prints in Markdown the median
           of the relative error of the output over query heads, and the mean softmax mass of the positions attended,
           each with an interval of 95% (bootstrap over layers and queries together). Needs the package hayloft.
           Bits are those of a position and KV head, scales and ranges apart.
"""
import pathlib

import numpy as np
from common import print_table

QUERIES = 12
NEEDLE = "One of the special magic numbers for {} is: {}."
CITIES = ("Lisbon", "Oslo", "Cairo", "Lima")


def ruler_ids(tokenizer, text, tokens, seed=7):
    """Like niah_single_2: needles in prose, a question for one of them."""
    random = np.random.default_rng(seed)
    numbers = random.integers(1_000_000, 9_999_999, len(CITIES))
    head = "Some special magic numbers are hidden within the following text. Make sure to memorize it.\n"
    tail = (f"\nWhat is the special magic number for {CITIES[1]} mentioned in the provided text? "
            f"The special magic number for {CITIES[1]} mentioned in the provided text is")
    encode = lambda part: tokenizer(part, add_special_tokens=False).input_ids
    first, last, prose = tokenizer(head).input_ids, encode(tail), encode(text)
    needles = [encode(" " + NEEDLE.format(city, number)) for city, number in zip(CITIES, numbers)]
    room = tokens - len(first) - len(last) - sum(map(len, needles))
    if len(prose) < room:
        raise SystemExit(f"the text has {len(prose)} tokens, and {room} are needed")
    cuts = sorted(random.integers(0, room, len(needles)))
    pieces = np.split(np.array(prose[:room]), cuts)
    ids = list(first)
    for i, piece in enumerate(pieces):
        ids += [*piece, *(needles[i] if i < len(needles) else [])]
    return ids + last


def capture(args):
    import torch
    from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    folder, file = args.model.parent, args.model.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    text = args.text.read_text()
    ids = ruler_ids(tokenizer, text, args.tokens) if args.ruler else tokenizer(text).input_ids[:args.tokens]
    if len(ids) < args.tokens:
        raise SystemExit(f"{args.text}: has {len(ids)} tokens, and --tokens asks for {args.tokens}")
    at = np.arange(args.tokens - QUERIES, args.tokens) if args.ruler else np.linspace(
        args.tokens * 3 // 4, args.tokens - 1, QUERIES).astype(int)
    arrays = {"positions": at}

    def attend(module, q, k, v, mask, **options):
        if not getattr(module, "sliding_window", None):
            if abs(options["scaling"] - q.shape[-1] ** -0.5) > 1e-6:
                raise SystemExit(f"products are scaled by {options['scaling']}, not by 1 / sqrt({q.shape[-1]})")
            for name, array in (("q", q[0][:, at].transpose(0, 1).float()), ("k", k[0].half()), ("v", v[0].half())):
                arrays[f"{name}{module.layer_idx}"] = array.numpy().copy()
        return sdpa_attention_forward(module, q, k, v, mask, **options)

    AttentionInterface.register("kept", attend)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, attn_implementation="kept")
    with torch.no_grad():
        model(torch.tensor([ids]), logits_to_keep=1)
    np.savez(args.file, **arrays)
    print(f"{args.file}: {len(ids)} tokens, {sum(name[0] == 'k' for name in arrays)} layers")


def methods(bits, head_dim, k):
    """Label, method, columns; those that cannot be had at so many bits are left out."""
    if bits // 4 <= head_dim:
        yield "sparq, int4", f"sparq:r={max(1, bits // 4)}:k={k}", "int4"
        yield "sparq by qk, planes", f"sparq:r={max(1, bits // 4)}:by=qk:k={k}", "planes"
    if bits // 16 >= 1:
        yield "sparq, f16", f"sparq:r={bits // 16}:k={k}", "f16"
    yield "planes", f"planes:bits={bits}:k={k}", "planes"


def step(hayloft, q, k, v, attn, columns):
    """Relative error of the output, and mass of what was attended, by query head."""
    heads, group = k.shape[0], q.shape[0] // k.shape[0]
    found = hayloft.attend(q[None], k, v, attn, details=True, block_tokens=256, columns=columns)
    logits = np.einsum("hgd,htd->hgt", q.reshape(heads, group, -1), k) / np.sqrt(q.shape[1])
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    exact = np.einsum("hgt,htd->hgd", weights, v).reshape(q.shape)
    mass = np.array([weights[h][:, found.positions[0, h]].sum(-1) for h in range(heads)]).ravel()
    error = np.linalg.norm(found.y[0] - exact, axis=1) / np.linalg.norm(exact, axis=1)
    return error, mass


def interval(samples, figure, random):
    """samples: [queries][heads]; figure of all of them, and its 2.5% and 97.5% over resampled queries."""
    again = [figure(samples[random.integers(0, len(samples), len(samples))]) for _ in range(300)]
    return figure(samples), *np.quantile(again, [0.025, 0.975])


def measure(args):
    import hayloft

    random = np.random.default_rng(1)
    for file in args.files:
        arrays = np.load(file)
        layers = sorted(int(name[1:]) for name in arrays.files if name[0] == "k")
        results = {}
        for layer in layers:
            q, k, v = (arrays[f"{name}{layer}"].astype(np.float32) for name in "qkv")
            for i, position in enumerate(arrays["positions"]):
                at = q[i], k[:, :position + 1], v[:, :position + 1]
                results.setdefault(("exact top-k", 0), []).append(
                    step(hayloft, *at, f"oracle:k={args.k}", "f16"))
                for bits in args.bits:
                    for label, attn, columns in methods(bits, k.shape[-1], args.k):
                        results.setdefault((label, bits), []).append(step(hayloft, *at, attn, columns))
        print(f"\n{pathlib.Path(file).stem}: {len(layers)} layers, {k.shape[0]} KV heads of {q.shape[1] // k.shape[0]} query "
              f"heads, {k.shape[1]} tokens, k = {args.k}\n")
        cells = {}
        for key, steps in results.items():
            errors, masses = (np.array(values) for values in zip(*steps))
            error, mass = interval(errors, np.median, random), interval(masses, np.mean, random)
            cells[key] = (f"{error[0]:.3f} ({error[1]:.3f} to {error[2]:.3f}), "
                          f"{mass[0]:.3f} ({mass[1]:.3f} to {mass[2]:.3f})")
        print_table(("median relative error, mass", *(f"{bits} bits" for bits in args.bits)),
                    [(label, *(cells.get((label, bits), cells.get((label, 0), "")) for bits in args.bits))
                     for label in dict.fromkeys(label for label, _ in cells)])


def add_arguments(parser):
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("capture")
    one.add_argument("model", type=pathlib.Path)
    one.add_argument("text", type=pathlib.Path)
    one.add_argument("file", type=pathlib.Path)
    one.add_argument("--tokens", type=int, default=4096)
    one.add_argument("--ruler", action="store_true")
    one.set_defaults(call=capture)
    two = commands.add_parser("measure")
    two.add_argument("files", nargs="+")
    two.add_argument("--bits", type=lambda text: [int(item) for item in text.split(",")], default=[16, 32, 64, 128])
    two.add_argument("--k", type=int, default=128)
    two.set_defaults(call=measure)


def run(args):
    args.call(args)
