"""Contexts as tensors: hayloft import and hayloft export, and hayloft.save_context."""

import collections
import subprocess

import numpy as np
import pytest
from conftest import MODELS, NEEDLE_MODEL
from test_attend import read_safetensors, write_safetensors

import hayloft

ROOT = MODELS.parents[2]


@pytest.fixture(scope="session")
def book(program, model_path, tmp_path_factory):
    """A context that the program has read, and its tensors."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "book.txt").write_text((ROOT / "docs" / "design.md").read_text()[:2000])
    run = [program, "ingest", "-m", model_path, "-f", "book.txt", "--save", "book.hay", "--batch", "64", "--block-tokens", "64",
           "--device", "cpu", "--threads", "1"]
    subprocess.run(run, cwd=folder, check=True, capture_output=True)
    subprocess.run([program, "export", "book.hay", "--out", "kv.safetensors"], cwd=folder, check=True, capture_output=True)
    return folder


def layers_of(tensors):
    return sum(name.endswith(".k") for name in tensors)


def last(tensors):
    return f"layer.{layers_of(tensors) - 1}."


def ask(program, folder, context):
    return subprocess.run([program, "ask", context, "-p", "In short, a block is", "-n", "16", "--device", "cpu", "--threads",
                           "1"], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_export_and_import_change_nothing(program, model_path, book):
    subprocess.run([program, "import", "-m", model_path, "--in", "kv.safetensors", "--save", "again.hay", "--block-tokens", "64",
                    "--device", "cpu"], cwd=book, check=True, capture_output=True)
    assert ask(program, book, "again.hay") == ask(program, book, "book.hay")
    subprocess.run([program, "export", "again.hay", "--out", "again.safetensors"], cwd=book, check=True, capture_output=True)
    assert (book / "again.safetensors").read_bytes() == (book / "kv.safetensors").read_bytes()


def test_save_context_takes_arrays(model_path, machine, book, tmp_path):
    tensors = read_safetensors(book / "kv.safetensors")
    layers = [(tensors[f"layer.{i}.k"], tensors[f"layer.{i}.v"]) for i in range(layers_of(tensors))]
    tokens, cached = hayloft.save_context(layers, tensors["tokens"], model_path, tmp_path / "made.hay", block_tokens=64,
                                          machine=machine)
    assert cached == max(k.shape[1] for k, _ in layers) and cached % 64 == 0 and cached < tokens
    named = [collections.namedtuple("Layer", "keys values")(*layer) for layer in layers]
    assert hayloft.save_context(named, tensors["tokens"], model_path, tmp_path / "named.hay", block_tokens=64,
                                machine=machine) == (tokens, cached)
    model = hayloft.Model(model_path, machine=machine)
    made, wanted = model.open(tmp_path / "made.hay"), model.open(book / "book.hay")
    assert made.tokens == wanted.tokens
    assert list(made.stream("In short,", 12)) == list(wanted.stream("In short,", 12))


def test_a_context_that_ends_within_a_chunk_goes_on(program, model_path, book, tmp_path):
    tensors = dict(read_safetensors(book / "kv.safetensors"))
    for i in range(layers_of(tensors)):
        for half in "kv":
            tensors[f"layer.{i}.{half}"] = tensors[f"layer.{i}.{half}"][:, :100]
    tensors["tokens"] = tensors["tokens"][:100]
    write_safetensors(tmp_path / "short.safetensors", tensors)
    (tmp_path / "more.txt").write_text("and the rest of it. " * 600)
    common = {"cwd": tmp_path, "check": True, "capture_output": True}
    subprocess.run([program, "import", "-m", model_path, "--in", "short.safetensors", "--save", "short.hay"], **common)
    subprocess.run([program, "ingest", "-m", model_path, "--append", "short.hay", "-f", "more.txt"], **common)
    subprocess.run([program, "inspect", "short.hay", "--verify"], **common)


@pytest.mark.parametrize("prefill, said", [("window:32", "the prompt was read by window"), ("topk:8", "the prompt was read by topk"),
                                           ("sparse", "exact")])
def test_how_a_context_was_read_is_said_after_export_and_import(program, tmp_path, prefill, said):
    """The bundled model's only global layer is its last, of which a sparse reading leaves nothing out."""
    (tmp_path / "book.txt").write_text((ROOT / "docs" / "design.md").read_text()[:3000])
    common = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
    kind, _, size = prefill.partition(":")
    how = {"window": ["--prefill-window", size, "--prefill-sinks", "4"], "topk": ["--prefill-k", size, "--prefill-window", "16"],
           "sparse": []}[kind]
    subprocess.run([program, "ingest", "-m", NEEDLE_MODEL, "-f", "book.txt", "--save", "read.hay", "--prefill", kind, *how,
                    "--batch", "64", "--block-tokens", "64", "--device", "cpu", "--threads", "1"], **common)
    subprocess.run([program, "export", "read.hay", "--out", "kv.safetensors"], **common)
    subprocess.run([program, "import", "-m", NEEDLE_MODEL, "--in", "kv.safetensors", "--save", "again.hay", "--device", "cpu"],
                   **common)
    assert said in hayloft.Model(str(NEEDLE_MODEL), machine=hayloft.Machine(threads=1, device="cpu")).open(
        tmp_path / "again.hay").attention


@pytest.mark.parametrize("damage,part", [
    (lambda t: t.pop(last(t) + "v"), ".v"),
    (lambda t: t.update(extra=t["tokens"]), "tensors"),
    (lambda t: t.update(tokens=t["tokens"][:-200]), "ids of only"),
    (lambda t: t.update(tokens=t["tokens"] + 60000), "vocabulary"),
    (lambda t: t.update(tokens=t["tokens"].astype(np.float32)), "I32 or I64"),
    (lambda t: t.update({last(t) + "k": t[last(t) + "k"][:, :-1]}), ".k"),
    (lambda t: t.update({last(t) + "k": t[last(t) + "k"][:, :, :8]}), "KV heads"),
    (lambda t: t.update({last(t) + "v": np.full_like(t[last(t) + "v"], np.inf)}), "finite"),
    (lambda t: t.update({last(t) + "v": t[last(t) + "v"].astype(np.int32)}), "I32"),
])
def test_import_refuses_what_does_not_fit(program, model_path, book, tmp_path, damage, part):
    tensors = dict(read_safetensors(book / "kv.safetensors"))
    damage(tensors)
    write_safetensors(tmp_path / "bad.safetensors", tensors)
    made = subprocess.run([program, "import", "-m", model_path, "--in", "bad.safetensors", "--save", "bad.hay"], cwd=tmp_path,
                          capture_output=True, text=True)
    assert made.returncode == 1 and part in made.stderr and made.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.safetensors"]
