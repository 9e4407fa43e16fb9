"""What the tests share. They run against the package that Python finds: an installed one, or a build tree's by PYTHONPATH.
HAYLOFT_PROGRAM names the program; what needs something that is not here is skipped and says so."""

import os
import pathlib
import shutil

import numpy as np
import pytest

import hayloft

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "golden" / "models"
NEEDLE_MODEL = ROOT / "examples" / "needle-model" / "model"


@pytest.fixture(scope="session")
def program():
    found = os.environ.get("HAYLOFT_PROGRAM") or shutil.which("hayloft")
    if not found or not os.path.exists(found):
        pytest.skip("no program: HAYLOFT_PROGRAM is not set and hayloft is not in PATH")
    return found


@pytest.fixture(scope="session")
def smollm2():
    folder = os.environ.get("HAYLOFT_MODELS") or pathlib.Path.home() / ".cache" / "hayloft" / "models"
    path = pathlib.Path(folder) / "smollm2.gguf"
    if not path.exists():
        pytest.skip(f"no {path}: scripts/models fetches it")
    return str(path)


@pytest.fixture(scope="session", params=["needle-model", "smollm2"])
def model_path(request):
    """The bundled model, and a trained one where it is."""
    return str(NEEDLE_MODEL) if request.param == "needle-model" else request.getfixturevalue("smollm2")


@pytest.fixture(scope="session")
def machine():
    return hayloft.Machine(threads=1, device="cpu")


def random_qkv(queries=3, heads=4, kv_heads=2, tokens=300, d=32, seed=1):
    """q [N, Hq, d], k and v [Hkv, S, d], normal, of values that 16 bits hold."""
    draw = np.random.default_rng(seed)
    k, v = (draw.standard_normal((kv_heads, tokens, d)).astype(np.float16).astype(np.float32) for _ in range(2))
    return draw.standard_normal((queries, heads, d)).astype(np.float32), k, v


def exact(q, k, v):
    """Attention in double precision: the oracle."""
    group = q.shape[1] // k.shape[0]
    out = np.empty(q.shape)
    for head in range(q.shape[1]):
        keys, values = (x[head // group].astype(np.float64) for x in (k, v))
        scores = q[:, head].astype(np.float64) @ keys.T / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ values
    return out
