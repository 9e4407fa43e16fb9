"""The tables of docs/fits.md: which context fits which card, by `hayloft plan`.

For each model the smallest change with which a context fits each pair of card and host memory (rows of 16 bits, else of
8, else of 4; then a prompt read in chunks of 512 tokens), and the tokens per second that its bytes and counted
instructions allow. Nothing of it is measured. Shapes are those of the configurations that the models' makers publish.
"""
import json
import pathlib
import tempfile

from common import add_program, plans, print_table

LENGTHS = {"32k": 32768, "128k": 131072, "256k": 262144, "1M": 1048576}
# GiB, then multiprocessors, GHz, GB/s of memory and of the link. Of each size a common card, as its maker describes it;
# the link at 0.8 of what its lanes carry.
CARDS = {
    "8 GiB": (8, "24,2.46,272,12.5"),  # RTX 4060, PCIe 4 x8
    "12 GiB": (12, "46,2.48,504,25"),  # RTX 4070, PCIe 4 x16
    "16 GiB": (16, "36,2.57,448,25"),  # RTX 5060 Ti, PCIe 5 x8
    "24 GiB": (24, "128,2.52,1008,25"),  # RTX 4090, PCIe 4 x16
}
HOSTS = (32, 64, 128)  # GiB
SPARE_CARD, SPARE_HOST = 0.5, 4  # GiB that are left to others
CHANGES = [(rows, batch) for batch in ("2048", "512") for rows in ("f16", "int8", "int4")]  # the first that fits is taken
METHOD = "sparq:r=16:k=512"
# Exact decoding: model, length, and of the drafts this share is accepted.
EXACT = [("Llama 3.1 8B", "128k"), ("Llama 3.1 8B", "1M"), ("Qwen3.5 27B (hybrid)", "256k")]
EXACT_CARDS, EXACT_HOST, ACCEPTED = ("16 GiB", "24 GiB"), 128, ("0.8", "0.93")


def transformer(kind, layers, heads, kv_heads, d, hidden, inner, vocabulary, tied=False, **more):
    return {"model_type": kind, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": d, "hidden_size": hidden, "intermediate_size": inner,
            "vocab_size": vocabulary, "tie_word_embeddings": tied, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 1 << 20, "rope_theta": 1e6, **more}


def hybrid(layers, heads, hidden, inner, value_heads, tied=False):
    return transformer("qwen3_5_text", layers, heads, 4, 256, hidden, inner, 248320, tied, linear_conv_kernel_dim=4,
                       linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16,
                       linear_num_value_heads=value_heads, mtp_num_hidden_layers=1)


MODELS = [  # name, type of weights, configuration
    ("Qwen3 4B", "Q4_K", transformer("qwen3", 36, 32, 8, 128, 2560, 9728, 151936, True)),
    ("Llama 3.1 8B", "Q4_K", transformer("llama", 32, 32, 8, 128, 4096, 14336, 128256)),
    ("Qwen3.5 9B (hybrid)", "Q4_K", hybrid(32, 16, 4096, 12288, 32)),
    ("Gemma 3 12B", "Q4_K", transformer("gemma3_text", 48, 16, 8, 256, 3840, 15360, 262208, True, sliding_window=1024,
                                        sliding_window_pattern=6, query_pre_attn_scalar=256,
                                        hidden_activation="gelu_pytorch_tanh", rope_local_base_freq=1e4)),
    ("Qwen3 14B", "Q4_K", transformer("qwen3", 40, 40, 8, 128, 5120, 17408, 151936)),
    ("Mistral Small 24B", "IQ4_XS", transformer("mistral", 40, 32, 8, 128, 5120, 32768, 131072, sliding_window=None)),
    ("Qwen3.5 27B (hybrid)", "IQ4_XS", hybrid(64, 24, 5120, 17408, 48)),
]


def arguments(config, weights, card, host, rows, batch):
    memory, rates = CARDS[card]
    return ("-m", config, "--weight-type", weights, "--gpu-memory", f"{memory - SPARE_CARD}GiB", "--host-memory",
            f"{host - SPARE_HOST}GiB", "--columns", "int4", "--rows", rows, "-b", batch, "--attn", METHOD, "--card", rates)


def planned(program, config, weights, card, host, rows, batch):
    """By length: whether it fits, what is short, milliseconds per token."""
    cells = []
    for plan in plans(program, *arguments(config, weights, card, host, rows, batch), "-c", ",".join(LENGTHS)):
        stages = plan["methods"][0]["predicted_on_card"]
        bytes_ = plan["bytes"]
        short = "card" if bytes_["device"] > bytes_["device_budget"] else "host"
        cells.append((plan["fits"], short, sum(stage["predicted_ms"] for stage in stages)))
    return cells


def exact_row(program, path, weights, card, length, accepted):
    """Tokens a pass by copies, by `sparq` and by the model's head, then tokens per second and bytes over the link by single steps and by these."""
    for batch in ("2048", "512"):
        plan = plans(program, *arguments(path, weights, card, EXACT_HOST, "int8", batch), "-c", length, "--accepted",
                     accepted)[0]
        if plan["fits"]:
            break
    single, *drafted = plan["exact"]
    drafted += [None] * (3 - len(drafted))  # a model without a head
    says = lambda of, text: "-" if of is None else text(of)
    rate = lambda of: f"{1000 / of['predicted_on_card_ms_per_token']:.1f}/s"
    read = lambda of: f"{of['link_bytes_per_token'] / 1e9:.2f} GB"
    return (*(says(of, lambda of: f"{of['tokens_per_pass']:.1f}") for of in drafted),
            *(says(of, rate) for of in (single, *drafted)), *(says(of, read) for of in (single, *drafted)))


def cells_of(program, path, weights, card, host):
    """By length: the first change that fits with its tokens per second, or what is short."""
    line = [None] * len(LENGTHS)
    for rows, batch in CHANGES:
        for at, (fits, short, ms) in enumerate(planned(program, path, weights, card, host, rows, batch)):
            if line[at] is None and fits:
                said = ("" if rows == "f16" else f"`{rows}` ") + ("" if batch == "2048" else f"`-b {batch}` ")
                line[at] = f"{said}{1000 / ms:.0f}/s"
            elif line[at] is None and (rows, batch) == CHANGES[-1]:
                line[at] = f"no: {short}"
        if None not in line:
            break
    return line


def add_arguments(parser):
    add_program(parser)


def run(args):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        for name, weights, config in MODELS:
            path.write_text(json.dumps(config))
            print(f"\n### {name}, weights in {weights}\n")
            print_table(("card", "host", *LENGTHS), ((card, f"{host} GiB", *cells_of(args.hayloft, path, weights, card, host))
                                                     for card in CARDS for host in HOSTS), right=[1])
        print("\n### Exact answers\n")
        rows = []
        for name, length in EXACT:
            weights, config = next((weights, config) for model, weights, config in MODELS if model == name)
            path.write_text(json.dumps(config))
            rows += [(f"{name}, {length}", card, f"{float(share):.0%}",
                      *exact_row(args.hayloft, path, weights, card, length, share))
                     for card in EXACT_CARDS for share in ACCEPTED]
        print_table(("model and context", "card", "accepted", "tokens a pass: copies", "by `sparq`", "by `mtp`", "single steps",
                     "copies", "by `sparq`", "by `mtp`", "over the link: single steps", "copies", "by `sparq`", "by `mtp`"),
                    rows, right=[2, 3, 4, 5])
