"""Models and sessions, on the bundled model and on SmolLM2."""

import copy
import os
import shutil
import signal
import subprocess
import threading

import numpy as np
import pytest
from conftest import MODELS, NEEDLE_MODEL

import hayloft

PROMPT = "The hay is in the barn, and the barn is on the hill. The hay is in the"


@pytest.fixture(scope="session")
def model(model_path, machine):
    return hayloft.Model(model_path, machine=machine)


@pytest.mark.parametrize("rows", ["f16", "int4"])
@pytest.mark.parametrize("method", ["dense", "sparq:r=16:k=32", "topk:k=16"])
def test_generates_what_the_program_does(model, model_path, program, method, rows):
    options = ["--block-tokens", "16", "--rows", rows, "--device", "cpu", "--threads", "1"]
    made = subprocess.run([program, "generate", "-m", model_path, "-p", PROMPT, "-n", "24", "--attn", method, *options],
                          check=True, capture_output=True, text=True).stdout
    session = model.session(attn=method, block_tokens=16, rows=rows)
    assert session.generate(PROMPT, 24) == made.removesuffix("\n")
    assert session.counters.elements > 0 and session.counters.total("link") >= 0


@pytest.mark.parametrize("draft", ["lookup", "self:topk:k=16", "lookup,self"])
def test_drafts_change_no_token(model, draft):
    alone = model.session(block_tokens=16)
    wanted = alone.generate(PROMPT, 40)
    session = model.session(block_tokens=16)
    assert session.generate(PROMPT, 40, draft=draft) == wanted
    assert session.tokens == alone.tokens and len(session) == len(session.tokens)
    assert session.attention == "exact"
    drafts = session.drafts
    assert drafts["tokens"] == 40 and 0 < drafts["passes"] <= 40 and drafts["accepted"] <= drafts["drafted"]
    sampled = hayloft.Sampling(temperature=0.8, seed=3)
    assert (session.generate([28], 20, sampling=sampled, draft=draft)
            == alone.generate([28], 20, sampling=sampled))


def test_a_draft_is_no_longer_than_it_may_be(model):
    session = model.session().append(PROMPT)
    wanted = session.fork().generate([28], 40, draft="lookup")
    short = session.fork()
    assert short.generate([28], 40, draft="lookup", draft_max=1) == wanted
    assert short.drafts["drafted"] <= short.drafts["passes"]
    with pytest.raises(hayloft.Error, match="draft_max 0: must be 1 to 63"):
        session.generate([28], 4, draft="lookup", draft_max=0)


def test_drafts_are_refused_where_they_are_not_verified(model):
    with pytest.raises(hayloft.Error, match="set attn to 'dense'"):
        model.session(attn="sparq:r=16:k=32").generate(PROMPT, 4, draft="lookup")
    with pytest.raises(hayloft.Error, match="draft"):
        model.session().generate(PROMPT, 4, draft="guess")
    with pytest.raises(hayloft.Error, match="without its head"):
        model.session().generate(PROMPT, 4, draft="mtp")
    with pytest.raises(hayloft.Error, match="no head"):
        hayloft.Model(model.path, head=True)


def test_a_fork_goes_its_own_way(model):
    session = model.session().append(PROMPT)
    fork = session.fork()
    one = list(session.stream([28], 8))
    assert list(fork.stream([28], 8)) == one
    assert len(session) == len(fork) == len(session.tokens)


def test_logits_and_scores_agree(model):
    ids = model.encode(PROMPT)
    scores = model.session().score(ids)
    assert scores.shape == (len(ids), model.config["vocab_size"]) and scores.dtype == np.float32
    session = model.session().append(ids[:-1])
    logits = session.logits(ids[-1])
    # The same sums in another order, over K and V of 16 bits.
    assert np.abs(logits - scores[-1]).max() < 0.02
    assert list(model.session().stream(ids, 1)) == [int(logits.argmax())]


def test_a_saved_context_goes_on_as_it_was(model, model_path, program, tmp_path):
    session = model.session(block_tokens=16).append(PROMPT)
    session.save(tmp_path / "hay.hay")
    with pytest.raises(hayloft.Error, match="exists"):
        session.save(tmp_path / "hay.hay")
    wanted = list(session.stream([28], 12))
    opened = model.open(tmp_path / "hay.hay")
    assert opened.tokens == model.encode(PROMPT)
    assert list(opened.stream([28], 12)) == wanted
    subprocess.run([program, "inspect", tmp_path / "hay.hay", "--verify"], check=True, capture_output=True)


def test_what_was_generated_is_saved_too(model, tmp_path):
    session = model.session()
    drawn = list(session.stream(PROMPT, 6))
    session.save(tmp_path / "more.hay")
    opened = model.open(tmp_path / "more.hay")
    assert opened.tokens == session.tokens
    assert list(opened.stream([drawn[-1]], 6)) == list(session.stream([drawn[-1]], 6))


@pytest.fixture
def small_model(tmp_path, machine):
    """Of three layers that attend to everything, and random weights; of that name, for so many positions."""

    def made(name, positions=0):
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(MODELS / name, folder)
            shutil.copy(NEEDLE_MODEL / "tokenizer.json", folder)
        return hayloft.Model(folder, machine=machine, positions=positions)

    return made


def test_what_reading_left_out_is_saved_too(small_model, tmp_path):
    """By whichever way a part of the text was read: no answer behind it is called exact."""
    model = small_model("llama")
    ids = np.random.default_rng(2).integers(3, 128, 2000)
    sparse = model.session(prefill="sparse:density=0.05", chunk_tokens=128, block_tokens=64).append(ids)
    sparse.save(tmp_path / "sparse.hay")
    exact = model.session(chunk_tokens=128, block_tokens=64).append(ids)
    exact.save(tmp_path / "exact.hay")
    window = model.open(tmp_path / "exact.hay", prefill="window:window=16:sinks=4").append(ids)
    window.save(tmp_path / "window.hay")
    more = model.open(tmp_path / "exact.hay", prefill="sparse:density=0.05").append(ids)
    more.save(tmp_path / "more.hay")
    question = model.open(tmp_path / "window.hay").append(ids)
    question.fork().save(tmp_path / "twice.hay")
    for name, session in (("sparse", sparse), ("exact", exact), ("window", window), ("more", more), ("twice", question)):
        said = [each.attention for each in (session.fork(), model.open(tmp_path / f"{name}.hay"))]
        assert (said[0] == "exact") == (name == "exact"), (name, said)
        assert said[0] == said[1], name


def test_ways_of_reading_that_left_nothing_out_say_nothing_of_others(small_model, tmp_path):
    """What was read by a window longer than the text, or sparsely without leaving a key out, hides no window that did."""
    model = small_model("llama")
    ids = np.random.default_rng(3).integers(3, 128, 600)
    for number, (first, then, exact) in enumerate([
            ("window:window=4096:sinks=4", "window:window=16:sinks=4", False), ("sparse:density=1", "window:window=16:sinks=4", False),
            ("window:window=16:sinks=4", "window:window=4096:sinks=4", False), ("window:window=16:sinks=4", "exact", False),
            ("sparse:density=0.05", "window:window=16:sinks=4", False), ("window:window=16:sinks=4", "sparse:density=0.05", False),
            ("window:window=700:sinks=4", "exact", True), ("window:window=700:sinks=4", "window:window=4096:sinks=4", True)]):
        begun, more = (tmp_path / f"{part}{number}.hay" for part in ("begun", "more"))
        model.session(prefill=first, chunk_tokens=128, block_tokens=64).append(ids).save(begun)
        opened = model.open(begun, prefill=then).append(ids)
        opened.save(more)
        for said in (opened.attention, model.open(more).attention):
            assert (said == "exact") == exact, (first, then, said)


def test_a_reading_that_fails_before_it_begins_is_not_noted(small_model, tmp_path):
    model = small_model("llama")
    model.session(chunk_tokens=128, block_tokens=64).append(np.random.default_rng(5).integers(3, 128, 600)).save(tmp_path / "exact.hay")
    session = model.open(tmp_path / "exact.hay", prefill="window:window=16:sinks=4")
    with pytest.raises(hayloft.Error):
        session.append([-1])
    session.save(tmp_path / "again.hay")
    assert model.open(tmp_path / "again.hay").attention == "exact"


def test_tokens_decoded_approximately_stay_so_in_a_saved_context(small_model, tmp_path):
    model = small_model("llama")
    ids = np.random.default_rng(6).integers(3, 128, 900)
    for method, said in (("topk:k=4", "approximate: the prompt was read by topk k=4 where it was decoded"), ("dense", "exact")):
        path = tmp_path / f"{method[:4]}.hay"
        session = model.session(attn=method, chunk_tokens=128, block_tokens=64).append(ids)
        for token in (5, 6, 7):
            session.logits(token)
        session.save(path)
        fork = session.fork()
        fork.attn = "dense"
        again = model.open(path)
        again.save(tmp_path / "again.hay", overwrite=True)
        for each in (fork, again, model.open(tmp_path / "again.hay")):
            assert each.attention == said, method


def test_what_nobody_knows_of_a_context_stays_unknown(small_model, tmp_path):
    model = small_model("llama")
    ids = np.random.default_rng(4).integers(3, 128, 600)
    path = tmp_path / "sparse.hay"
    model.session(prefill="sparse:density=0.05", chunk_tokens=128, block_tokens=64).append(ids).save(path)
    whole = path.read_bytes()
    for place in range(len(whole) - 1, 0, -8):  # of the figures, which lie at the end
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1:])
        try:
            opened = model.open(path)
        except hayloft.Error:
            continue
        if "nobody knows" in opened.attention:
            break
    else:
        raise AssertionError("no byte of the file is of the figures")
    for number, prefill in enumerate(("exact", "sparse:density=0.05", "window:window=16:sinks=4")):
        more = tmp_path / f"more{number}.hay"
        model.open(path, prefill=prefill).append(ids).save(more)
        assert "nobody knows" in model.open(more).attention, prefill


def test_scores_can_be_interrupted(model):
    session = model.session(chunk_tokens=16)
    ended = threading.Event()

    def interrupt():
        while not ended.is_set():
            if len(session) >= 16:
                os.kill(os.getpid(), signal.SIGINT)
                return

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever began the test may ignore it
    interrupting = threading.Thread(target=interrupt, daemon=True)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            session.score([5] * 30000)
    finally:
        ended.set()
        interrupting.join()
        signal.signal(signal.SIGINT, before)
    assert 16 <= len(session) < 30000 and len(session) == len(session.tokens)


def test_ids_without_a_text_are_refused(model):
    for token in (-1, 1 << 30):
        with pytest.raises(hayloft.Error, match=f"token id {token} is outside the model's vocabulary"):
            model.decode([5, token])


def test_an_id_outside_the_vocabulary_is_refused_before_any_is_read(model):
    for token in (-1, 10**6):
        session = model.session()
        for read in (session.generate, session.append, session.score, lambda ids: next(session.stream(ids))):
            with pytest.raises(hayloft.Error, match=f"token id {token} is outside the model's vocabulary"):
                read([5, 6, token])
        assert len(session) == 0 and session.tokens == []


def test_contexts_are_saved_with_the_rope_they_are_opened_with(small_model, tmp_path):
    """A RoPE that depends on the number of positions is not in a context's file: it was opened with another."""
    ids = list(range(3, 33))
    plain = small_model("llama-dynamic")
    plain.session().append(ids).save(tmp_path / "plain.hay")
    wanted = plain.session().append(ids).logits(5)
    longer = small_model("llama-dynamic", positions=4000)
    assert not np.array_equal(longer.session().append(ids).logits(5), wanted)
    with pytest.raises(hayloft.Error, match="without positions"):
        longer.session().append(ids).save(tmp_path / "longer.hay")
    with pytest.raises(hayloft.Error, match="without positions"):
        longer.open(tmp_path / "plain.hay")
    same = small_model("llama-dynamic", positions=plain.config["max_positions"])
    assert np.array_equal(same.open(tmp_path / "plain.hay").logits(5), wanted)


def test_a_zero_byte_ends_no_path(model, tmp_path):
    """The system would have ended the name there: another file."""
    other = tmp_path / "other"
    other.write_text("kept")
    name = f"{other}\0.hay"
    for call in (lambda: model.session().append(PROMPT).save(name, overwrite=True), lambda: model.open(name),
                 lambda: hayloft.Model(model.path + "\0x"), lambda: hayloft.plan(model.path + "\0x", 1000),
                 lambda: hayloft.save_context([], [], model.path, name, overwrite=True)):
        with pytest.raises(ValueError, match="zero byte"):
            call()
    assert other.read_text() == "kept"
    session = model.session().append(PROMPT)
    session.save(os.fsdecode(os.fsencode(tmp_path) + b"/odd-\xff.hay"))
    assert model.open(os.fsencode(tmp_path) + b"/odd-\xff.hay").tokens == session.tokens
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd-\xff")
    with pytest.raises(hayloft.Error) as refused:
        hayloft.Model(odd)
    assert odd in str(refused.value)
    os.symlink(model.path, odd)
    assert hayloft.Model(odd).path == odd
    with pytest.raises(TypeError, match="a text is a str"):
        model.encode(b"The hay")


def test_ids_are_whole_numbers(model):
    """What is none is refused: bytes would be read as the ids 0 to 255."""
    for prompt in (b"The hay", bytearray(b"hay"), [1.0, 2.0], np.array([1.5]), ["1"], {"input_ids": [1]}, [[1, 2]]):
        session = model.session()
        for read in (session.append, session.score, lambda ids: session.generate(ids, 2), lambda ids: session.generate(ids, 2, draft="lookup")):
            with pytest.raises(TypeError):
                read(prompt)
        assert len(session) == 0
    with pytest.raises(TypeError, match="decode them to a str"):
        model.decode(b"The hay")
    assert model.session().append(np.array([1, 2])).append((3,)).append(iter([4])).tokens == [1, 2, 3, 4]


def test_a_stream_does_not_go_on_behind_what_was_read_meanwhile(model):
    session = model.session()
    stream = session.stream(PROMPT, 6, stop_at_end=False)
    drawn = [next(stream), next(stream)]
    session.append([drawn[-1]])
    with pytest.raises(hayloft.Error, match="end a stream before anything else is read"):
        next(stream)
    assert session.tokens == model.encode(PROMPT) + drawn
    text = session.stream_text([28], 6, stop_at_end=False)
    next(text)
    session.fork().append([28])
    assert len([*text]) > 0


def test_at_least_one_token_is_drawn(model):
    for most in (0, -3):
        session = model.session()
        for call in (session.generate, lambda *asked: list(session.stream(*asked)), lambda *asked: list(session.stream_text(*asked)),
                     lambda *asked: session.generate(*asked, draft="lookup")):
            with pytest.raises(hayloft.Error, match=f"max_tokens {most}: must be 1 or more"):
                call(PROMPT, most)
        assert len(session) == 0


def test_a_copy_is_a_fork(model):
    session = model.session().append(PROMPT)
    twin = copy.copy(session)
    session.append([28])
    assert len(twin) == len(session) - 1


def test_sampling_repeats(model):
    sampling = hayloft.Sampling(temperature=0.9, top_k=40, seed=7)
    one, two = (model.session().generate(PROMPT, 12, sampling=sampling) for _ in range(2))
    assert one == two


def test_progress_can_stop_a_reading(model):
    session = model.session(chunk_tokens=8)

    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    ids = model.encode(PROMPT)
    with pytest.raises(KeyboardInterrupt):
        session.append(ids, stop)
    assert session.tokens == ids[:8] and len(session) == 8


def test_computing_releases_the_lock(model):
    """A thread that waits for the other to be in the middle of a reading: with the lock held it would never come."""
    reading, seen = threading.Event(), threading.Event()

    def progress(done, total):
        reading.set()
        assert seen.wait(60)

    session = model.session(chunk_tokens=4)
    thread = threading.Thread(target=session.append, args=(model.encode(PROMPT), progress))
    thread.start()
    assert reading.wait(60)
    with pytest.raises(hayloft.Error, match="another thread"):
        session.append([1])
    seen.set()
    thread.join()


def test_golden_models_open(machine):
    with pytest.raises(hayloft.Error):
        hayloft.Model(MODELS / "nothing", machine=machine)


def test_bad_options_are_one_line(model):
    for options, part in [({"attn": "sparq:r=999"}, "999"), ({"prefill": "some"}, "some"), ({"columns": "f8"}, "f8"),
                          ({"block_tokens": 17}, "17"), ({"chunk_tokens": 0}, "0"),
                          ({"prefill": "exact:window=5"}, "exact does not use 'window=5'"), ({"prefill": "exact window=5"}, "one of exact"),
                          ({"prefill": "exact:products=int8"}, "products"), ({"prefill": "window:window=5"}, "window=4096:sinks=4"),
                          ({"prefill": "sparse:density=0"}, "above 0"), ({"prefill": "sparse:mass=0.9:density=0.5"}, "takes one of"),
                          ({"prefill": "sparse:mass=2"}, "out of range"), ({"prefill": "topk:k=4:k=5:window=9"}, "twice")]:
        with pytest.raises(hayloft.Error, match=part) as error:
            model.session(**options)
        assert "\n" not in str(error.value)


def test_ways_to_read_a_prompt(model):
    for prefill in ("exact", "window:window=64:sinks=4", "topk:k=8:window=64", "topk:k_share=0.01:window=64", "sparse:mass=0.98", "sparse:fidelity=0.97",
                    "sparse:density=0.05"):
        assert len(model.session(prefill=prefill).append(PROMPT)) == len(model.encode(PROMPT))


def test_numbers_below_zero_are_refused(model):
    with pytest.raises(hayloft.Error, match="threads -1"):
        hayloft.Machine(threads=-1, device="cpu")
    with pytest.raises(hayloft.Error, match="positions -5"):
        hayloft.Model(model.path, positions=-5)
