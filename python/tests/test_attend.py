"""hayloft.attend and hayloft.search on arrays."""

import json
import subprocess

import numpy as np
import pytest
from conftest import exact, random_qkv

import hayloft


def test_dense_is_attention(machine):
    q, k, v = random_qkv()
    # f32 sums of S products, of values of about 1: far below 1e-5.
    np.testing.assert_allclose(hayloft.attend(q, k, v, machine=machine), exact(q, k, v), atol=1e-5)


@pytest.mark.parametrize("method", ["dense", "sparq:r=8:k=64", "topk:k=40", "window:k=32", "oracle:k=64", "pages:k=64"])
@pytest.mark.parametrize("columns, rows", [("f16", "f16"), ("int8", "f16"), ("int4", "int8"), ("f16", "int4")])
def test_equals_the_program_to_the_bit(machine, program, tmp_path, method, columns, rows):
    q, k, v = random_qkv()
    write_safetensors(tmp_path / "qkv.safetensors", {"q": q, "k": k, "v": v})
    subprocess.run([program, "attend", "--in", "qkv.safetensors", "--out", "y.safetensors", "--attn", method, "--device", "cpu",
                    "--block-tokens", "64", "--columns", columns, "--rows", rows, "--json", "counters.json"],
                   cwd=tmp_path, check=True)
    made = hayloft.attend(q, k, v, method, details=True, block_tokens=64, columns=columns, rows=rows, machine=machine)
    wanted = read_safetensors(tmp_path / "y.safetensors")
    assert made.y.tobytes() == wanted["y"].tobytes()
    assert (made.positions is None) == ("positions" not in wanted)
    if made.positions is not None:
        np.testing.assert_array_equal(made.positions, wanted["positions"])
    if made.alpha is not None:
        assert made.alpha.tobytes() == wanted["alpha"].tobytes()
    counted = json.loads((tmp_path / "counters.json").read_text())["counters"]
    assert [vars(each) for each in made.counters] == counted


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_every_dtype_gives_the_same(machine, dtype):
    q, k, v = random_qkv()
    q = q.astype(np.float16)
    wanted = hayloft.attend(q.astype(np.float32), k, v, "sparq:r=8:k=40", machine=machine)
    made = hayloft.attend(q.astype(dtype), k.astype(dtype), v.astype(dtype), "sparq:r=8:k=40", machine=machine)
    assert made.tobytes() == wanted.tobytes()


def test_bytes_in_the_other_order_are_the_same_numbers(machine):
    q, k, v = random_qkv()
    wanted = hayloft.attend(q, k, v, machine=machine)
    for order in "<>":
        swapped = (x.astype(order + "f4") for x in (q, k, v))
        assert hayloft.attend(*swapped, machine=machine).tobytes() == wanted.tobytes()


def test_what_a_mask_hides_is_not_attended_to_unasked(machine):
    q, k, v = random_qkv()
    with pytest.raises(TypeError, match="k: is a masked array"):
        hayloft.attend(q, np.ma.masked_array(k, k > 1), v, machine=machine)
    unmasked = np.ma.masked_array(k)
    assert hayloft.attend(q, unmasked, v, machine=machine).tobytes() == hayloft.attend(q, k, v, machine=machine).tobytes()


def test_layouts_that_differ_are_copied(machine):
    q, k, v = random_qkv()
    turned = np.ascontiguousarray(k.transpose(1, 0, 2)).transpose(1, 0, 2)
    assert not turned.flags.c_contiguous
    assert hayloft.attend(q, turned, v, machine=machine).tobytes() == hayloft.attend(q, k, v, machine=machine).tobytes()


def test_torch_tensors_are_taken(machine):
    torch = pytest.importorskip("torch")
    q, k, v = random_qkv()
    wanted = hayloft.attend(q, k, v, "topk:k=40", machine=machine)
    made = hayloft.attend(*(torch.from_numpy(x) for x in (q, k, v)), "topk:k=40", machine=machine)
    assert made.tobytes() == wanted.tobytes()
    brain = [torch.from_numpy(x).bfloat16() for x in (q, k, v)]
    made = hayloft.attend(*brain, machine=machine)
    assert made.tobytes() == hayloft.attend(*(x.float().numpy() for x in brain), machine=machine).tobytes()


def test_the_sign_of_a_tensor_is_kept(machine):
    """Also where PyTorch has put off changing it, as it does for the imaginary part of a conjugate."""
    torch = pytest.importorskip("torch")
    q, k, v = random_qkv()
    for dtype in (torch.float32, torch.bfloat16):
        wanted = hayloft.attend(*(torch.from_numpy(x).to(dtype) for x in (q, k, v)), machine=machine)
        late = [torch.complex(torch.zeros(x.shape), -torch.from_numpy(x)).conj().imag.to(dtype, copy=False) for x in (q, k, v)]
        assert dtype != torch.float32 or late[0].is_neg()
        assert hayloft.attend(*late, machine=machine).tobytes() == wanted.tobytes()


def test_tensors_that_are_no_numbers_of_a_floating_type_are_refused(machine):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in random_qkv())
    for other in ("float8_e4m3fn", "complex64", "int32"):
        with pytest.raises(TypeError, match=f"k: has dtype {other}; it must be one of"):
            hayloft.attend(q, k.to(getattr(torch, other)), v, machine=machine)
    with pytest.raises(TypeError, match="k: is a masked array"):
        hayloft.attend(q, torch.masked.masked_tensor(k, k < 1), v, machine=machine)


def test_what_does_not_fit_is_refused_in_one_line(machine):
    q, k, v = random_qkv()
    for refused, parts in [((q, k, v[:, :-1]), ["k is [2, 300, 32]", "v is [2, 299, 32]"]),
                           ((q[:, :3], k, v), ["3 query heads", "2 KV heads"]),
                           ((q[0], k, v), ["q", "[4, 32]"])]:
        with pytest.raises(hayloft.Error) as error:
            hayloft.attend(*refused, machine=machine)
        assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value)
    with pytest.raises(hayloft.Error, match="--attn-k 301"):
        hayloft.attend(q, k, v, "topk:k=301", machine=machine)
    with pytest.raises(hayloft.Error, match="unknown attention method"):
        hayloft.attend(q, k, v, "spark", machine=machine)
    with pytest.raises(TypeError, match="int64"):
        hayloft.attend(q.astype(np.int64), k, v, machine=machine)


def test_search_finds_the_largest_products(machine):
    q, k, v = random_qkv(tokens=500)
    made = hayloft.search(q, k, 20, block_tokens=64, machine=machine)
    assert made.shape == (3, 4, 20)
    for n in range(3):
        for head in range(4):
            products = k[head // 2].astype(np.float64) @ q[n, head].astype(np.float64)
            np.testing.assert_array_equal(made[n, head], np.sort(np.argsort(-products, kind="stable")[:20]))
    grouped = hayloft.search(q, k, 20, per="kv-head", group="logits", machine=machine)
    assert grouped.shape == (3, 2, 20)
    products = k[0].astype(np.float64) @ q[0, :2].astype(np.float64).sum(axis=0)
    np.testing.assert_array_equal(grouped[0, 0], np.sort(np.argsort(-products)[:20]))
    with pytest.raises(hayloft.Error, match='per="kv-head"'):
        hayloft.search(q, k, 20, group="logits", machine=machine)
    with pytest.raises(hayloft.Error, match="501"):
        hayloft.search(q, k, 501, machine=machine)
    for value, part in [(np.nan, "nan in query 1"), (1e38, "scale q down")]:
        q[1, 2, 3] = value
        with pytest.raises(hayloft.Error, match=part):
            hayloft.search(q, k, 20, machine=machine)


_TYPES = {"F32": np.float32, "I32": np.int32, "F16": np.float16, "I64": np.int64}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        dtype = next(text for text, kind in _TYPES.items() if array.dtype == kind)
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:begin]).items():
        first, last = entry["data_offsets"]
        tensors[name] = np.frombuffer(raw[begin + first:begin + last], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors
