"""What the scripts of this folder share: a model by its options, and a picture saved under a name."""

import argparse

import matplotlib

matplotlib.use("Agg")  # draws into files
import matplotlib.pyplot as plt  # noqa: E402

import hayloft  # noqa: E402


def arguments(description, picture, ctx_size, samples):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-m", "--model", required=True, help="a folder in Hugging Face's form, or a GGUF file")
    parser.add_argument("-c", "--ctx-size", type=int, default=ctx_size, help=f"tokens of context [{ctx_size}]")
    parser.add_argument("--samples", type=int, default=samples, help=f"of each task [{samples}]")
    parser.add_argument("--haystack", default="", help="a text file or a folder of them [a generated text]")
    parser.add_argument("--chat", action="store_true", help="write prompts by the model's chat template")
    parser.add_argument("--plot", default=picture, help=f"the picture [{picture}]")
    return parser


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(path)


__all__ = ["arguments", "hayloft", "plt", "save"]
