"""Methods written in Python, plans, and evaluations."""

import numpy as np
import pytest
from conftest import NEEDLE_MODEL, random_qkv

import hayloft


@hayloft.method("strongest")
def strongest(q, view):
    """Exact top-k by the sum of the group's products."""
    group = len(q) // view.kv_heads
    chosen = []
    for head in range(view.kv_heads):
        keys = view.keys(head)
        assert keys.dtype == np.float16 and keys.shape == (view.limit, q.shape[1])
        np.testing.assert_array_equal(view.column(head, 3), keys[:, 3])
        products = keys.astype(np.float64) @ q[head * group:(head + 1) * group].astype(np.float64).sum(axis=0)
        chosen.append(np.argsort(-products, kind="stable")[:view.count])
    return chosen


def test_an_own_method_attends_like_a_built_in_one(machine):
    q, k, v = random_qkv()
    own = hayloft.attend(q, k, v, "strongest:k=40", details=True, machine=machine)
    wanted = hayloft.attend(q, k, v, "topk:k=40:select=kv-head:group=logits", details=True, machine=machine)
    np.testing.assert_array_equal(own.positions, wanted.positions)
    assert own.y.tobytes() == wanted.y.tobytes()
    assert own.counters[0].rows_fetched == wanted.counters[0].rows_fetched
    assert own.counters[0].bytes["near"]["rows"] == 2 * k.size and own.counters[0].total("near") > 0
    assert "strongest" in hayloft.method_names()


def test_what_it_returns_is_checked(machine):
    q, k, v = random_qkv()
    kept = []
    answers = {"few": lambda q, view: [[5, 3], [0, 299]], "beyond": lambda q, view: [[0, 300], [0, 1]],
               "twice": lambda q, view: [[2, 2], [0, 1]], "flat": lambda q, view: [1, 2],
               "parts": lambda q, view: [[1.7, 2.9], [0.1, 5.5]], "mask": lambda q, view: np.array([[True, False], [False, True]]),
               "far": lambda q, view: np.array([[2**32 + 1, 2], [0, 5]]), "none": lambda q, view: [[], []], "many": lambda q, view: [range(200)] * 2,
               "fails": lambda q, view: 1 / 0, "keeps": lambda q, view: kept.append(view) or [[1], [2]]}
    for name, function in answers.items():
        hayloft.method(name)(function)
    made = hayloft.attend(q, k, v, "few:k=40", details=True, machine=machine)
    assert made.positions[0, :, :2].tolist() == [[3, 5], [0, 299]] and (made.positions[:, :, 2:] == -1).all()
    for name, error, part in [("beyond", hayloft.Error, "300"), ("twice", hayloft.Error, "position 2 twice"),
                              ("flat", hayloft.Error, "at most"), ("many", hayloft.Error, "at most"),
                              ("fails", ZeroDivisionError, "zero"),
                              ("parts", hayloft.Error, "float64; they must be whole numbers"),
                              ("mask", hayloft.Error, "bool; they must be whole numbers"), ("far", hayloft.Error, "4294967297")]:
        with pytest.raises(error, match=part):
            hayloft.attend(q, k, v, f"{name}:k=40", machine=machine)
    with pytest.raises(hayloft.Error, match="no positions"):
        hayloft.attend(q, k, v, "none:k=40", machine=machine)
    made = hayloft.attend(q, k, v, "none:k=40:window=10", details=True, machine=machine)  # the window is attended to
    assert (made.positions[:, :, 10:] == -1).all() and made.y.any()
    hayloft.attend(q, k, v, "keeps:k=40", machine=machine)
    with pytest.raises(hayloft.Error, match="no longer"):
        kept[0].keys(0)
    answers["holds"] = lambda q, view: kept.append(view) or 1 / 0
    hayloft.method("holds")(answers["holds"])
    with pytest.raises(ZeroDivisionError):
        hayloft.attend(q, k, v, "holds:k=40", machine=machine)
    for read in (lambda view: view.keys(0), lambda view: view.limit):  # whose call was ended by an exception
        with pytest.raises(hayloft.Error, match="no longer"):
            read(kept[-1])
    with pytest.raises(hayloft.Error, match="already"):
        hayloft.method("topk")(strongest)
    with pytest.raises(hayloft.Error, match="cannot name"):
        hayloft.method("a:b")(strongest)
    with pytest.raises(hayloft.Error, match="does not use 'r'"):
        hayloft.attend(q, k, v, "strongest:r=4", machine=machine)


def test_needles_are_found_by_an_own_method_beside_the_others(machine):
    model = hayloft.Model(NEEDLE_MODEL, machine=machine)
    rows = hayloft.eval(model, "depths", 2048, ["dense", "strongest:k=32", "window:k=32"], samples=3, needles=3,
                        digits=6, block_tokens=64, seed=1)
    score = {}
    for row in rows:
        score.setdefault(row["method"]["name"], []).append(row["score"])
    assert {name: len(scores) for name, scores in score.items()} == {"dense": 3, "strongest": 3, "window": 3}
    assert score["strongest"] == score["dense"] == [1, 1, 1]
    assert sum(score["window"]) < 3
    own = next(row for row in rows if row["method"]["name"] == "strongest")
    assert own["near_bytes_per_token"] > 0 and own["recall"] is not None


def test_auto_keeps_of_the_attention_what_the_program_keeps(machine):
    model = hayloft.Model(NEEDLE_MODEL, machine=machine)
    rows = hayloft.eval(model, "depths", 4096, "auto:r=1:k=8", samples=2, needles=2, digits=6, block_tokens=64)
    assert len(rows) == 2 and all(row["mass"] > 0.9 for row in rows)  # of one component the fastest keeps 0.66


def test_what_attention_is_like(machine):
    model = hayloft.Model(NEEDLE_MODEL, machine=machine)
    rows, figures = hayloft.eval(model, "depths", 1024, "dense", samples=2, needles=2, attention=True)
    assert len(rows) == 2 and figures["layers"][0]["entropy"]["mean"] >= 0


def test_plans(machine):
    short, long = hayloft.plan(shape=(32, 32, 8, 128), ctx_size=[1 << 16, 1 << 20], attn="sparq", machine=machine)
    assert short["tokens"] == 1 << 16 and long["tokens"] == 1 << 20
    assert hayloft.plan(NEEDLE_MODEL, 4096, machine=machine)[0]["tokens"] == 4096
    assert hayloft.plan(NEEDLE_MODEL, np.int64(4096), machine=machine)[0]["tokens"] == 4096
    with pytest.raises(hayloft.Error):
        hayloft.plan()
    for tokens in (0, -5, 1 << 62):
        with pytest.raises(hayloft.Error, match=f"ctx_size {tokens}: must be between 1"):
            hayloft.plan(NEEDLE_MODEL, tokens, machine=machine)


def test_an_evaluation_of_nothing_is_refused(machine):
    model = hayloft.Model(NEEDLE_MODEL, machine=machine)
    for asked, part in [({"ctx_size": []}, "ctx_size"), ({"needles": 0}, "at least one needle"),
                        ({"needles": 10**6}, "too short for 1000000 needles"),
                        ({"digits": 0}, "digits 0: must be between 1 and 18"), ({"digits": 19}, "digits 19: must be"), ({"fidelity_steps": -1}, "fidelity_steps -1"),
                        ({"attn": ["dense", "topk:k=8", "dense"]}, "attn: dense stands there twice")]:
        with pytest.raises(hayloft.Error, match=part):
            hayloft.eval(model, "depths", **{"ctx_size": 1024, "attn": "dense", **asked})


def test_what_a_task_does_not_use_is_said(machine):
    model = hayloft.Model(NEEDLE_MODEL, machine=machine)
    with pytest.raises(hayloft.Error, match="depths asks without a chat template"):
        hayloft.eval(model, "depths", 1024, "dense", needles=1, chat=True)
    with pytest.warns(RuntimeWarning, match="haystack: has no effect: niah_single_1"):
        hayloft.eval(model, "niah_single_1", 1024, "dense", samples=1, digits=6, haystack=__file__)
