"""hayloft's cache and attention in the models of transformers."""

import shutil

import pytest
from conftest import MODELS

import hayloft

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, DynamicCache  # noqa: E402
from transformers.cache_utils import DynamicLayer  # noqa: E402

import hayloft.transformers as plug  # noqa: E402

torch.set_num_threads(1)
plug.install()


class RoundedLayer(DynamicLayer):
    """K and V as the store keeps them: rounded to 16 bits."""

    def update(self, keys, values, *args, **kwargs):
        return super().update(keys.half().float(), values.half().float(), *args, **kwargs)


def rounded_cache(config):
    cache = DynamicCache(config=config)
    cache.layers = [RoundedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def load(folder, attention="eager", **options):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention, **options)
    return model.eval()


def logits(model, cache, ids, prompt):
    """Of a prompt, and of the tokens behind it, which go through one by one."""
    with torch.no_grad():
        out = [model(ids[:, :prompt], past_key_values=cache, use_cache=True).logits[0]]
        for at in range(prompt, ids.shape[1]):
            out.append(model(ids[:, at:at + 1], past_key_values=cache, use_cache=True).logits[0])
    return torch.cat(out)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "olmo2", "granite", "phi3", "smollm3", "mistral-sliding"])
def test_dense_equals_eager(name, machine):
    model = load(MODELS / name)
    ids = torch.randint(3, model.config.vocab_size, (1, 90), generator=torch.Generator().manual_seed(1))
    if 0 not in [int(getattr(layer, "sliding_window", 0) or 0) for layer in DynamicCache(config=model.config).layers]:
        with pytest.raises(hayloft.Error, match="attends to everything"):
            plug.Cache(model.config, machine=machine)
        return
    wanted = logits(model, rounded_cache(model.config), ids, 70)
    model.set_attn_implementation("sdpa")
    other = logits(model, rounded_cache(model.config), ids, 70)
    model.set_attn_implementation("hayloft:dense")
    cache = plug.Cache(model.config, block_tokens=16, window=8, machine=machine)
    made = logits(model, cache, ids, 70)
    # All round K and V alike and add in f32, in another order; a key halfway between two f16 then rounds to either, by which
    # PyTorch's own two differ as well: by 2^-11 of it.
    apart = (other - wanted).abs().max()
    assert apart <= 2**-11 * wanted.abs().max()
    assert (made - wanted).abs().max() <= max(2e-4 * wanted.abs().max(), 2 * apart)
    assert cache.get_seq_length() == 90


def test_methods_attend_to_less(machine):
    model = load(MODELS / "llama")
    ids = torch.randint(3, model.config.vocab_size, (1, 200), generator=torch.Generator().manual_seed(1))
    read = {}
    for method in ("dense", "sparq:r=4:k=16", "topk:k=16", "pages:k=32:page=16", "h2o:k=32"):
        model.set_attn_implementation("hayloft:" + method)
        cache = plug.Cache(model.config, block_tokens=16, window=8, machine=machine)
        assert torch.isfinite(logits(model, cache, ids, 190)).all()
        read[method] = cache.counters.rows_fetched
    assert all(read[method] < read["dense"] for method in read if method != "dense")


def test_generate_takes_the_attention_for_one_call(machine):
    model = load(MODELS / "llama")
    ids = torch.randint(3, model.config.vocab_size, (1, 40), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    wanted = model.generate(ids, **options)
    made = model.generate(ids, attn_implementation="hayloft:dense", **options)
    assert made.tolist() == wanted.tolist()
    assert model.config._attn_implementation == "eager"
    kept = plug.Cache(model.config, machine=machine)
    model.generate(ids, past_key_values=kept, attn_implementation="hayloft:topk:k=8", **options)
    assert kept.get_seq_length() == 47  # the last one drawn has not gone through


def test_what_cannot_be_done_is_said(machine):
    model = load(MODELS / "llama")
    ids = torch.randint(3, model.config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(1))
    cache = plug.Cache(model.config, machine=machine)
    with pytest.raises(hayloft.Error, match='attn_implementation="hayloft:'):
        model(ids[:1], past_key_values=cache)
    with pytest.raises(hayloft.Error, match="unknown attention method"):
        model.set_attn_implementation("hayloft:spark")
    model.set_attn_implementation("hayloft:dense")
    with pytest.raises(hayloft.Error, match="batch of 2"):
        model(ids, past_key_values=plug.Cache(model.config, machine=machine))
    hidden = torch.ones(1, 12, dtype=torch.long)
    hidden[0, 0] = 0
    with pytest.raises(hayloft.Error, match="hides tokens"):
        model(ids[:1], attention_mask=hidden, past_key_values=plug.Cache(model.config, machine=machine))
    with pytest.raises(hayloft.Error, match="past_key_values=hayloft"):
        model(ids[:1, :1], past_key_values=model(ids[:1], use_cache=True).past_key_values)
    model.set_attn_implementation("hayloft:topk:k=4")
    for options in ({"use_cache": False}, {"use_cache": True}):
        with pytest.raises(hayloft.Error, match="past_key_values=hayloft|mask of its own"):  # 4.57 says the latter
            model(ids[:1], **options)
    with pytest.raises(hayloft.Error, match="past_key_values=hayloft|mask of its own"):
        model.generate(ids[:1], max_new_tokens=2, use_cache=False)
    model.set_attn_implementation("hayloft:dense")
    broken = plug.Cache(model.config, machine=machine)
    layer = model.model.layers[1].mlp
    hook = layer.register_forward_pre_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids[:1], past_key_values=broken)
    hook.remove()
    with pytest.raises(hayloft.Error, match="not whole"):
        model(ids[:1], past_key_values=broken)


def causal(queries, tokens):
    return torch.ones(queries, tokens, dtype=torch.bool).tril(tokens - queries)[None, None]


def as_numbers(shown, dtype, hidden):
    return torch.zeros(shown.shape, dtype=dtype).masked_fill(~shown, hidden)


def masks_of(shown):
    """The same mask in every form that transformers takes: of truth, and to be added in several types."""
    yield shown
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield as_numbers(shown, dtype, torch.finfo(dtype).min)
        yield as_numbers(shown, dtype, float("-inf"))


def test_a_gradient_is_refused(machine):
    """Not one that leaves out what goes through the attention."""
    model = load(MODELS / "llama", "hayloft:dense")
    ids = torch.tensor([[5, 6, 7, 8]])
    made = model(ids, past_key_values=plug.Cache(model.config, machine=machine), use_cache=True).logits
    with pytest.raises(hayloft.Error, match="has no gradient"):
        made.sum().backward()
    with torch.no_grad():
        kept = model(ids, past_key_values=plug.Cache(model.config, machine=machine), use_cache=True).logits
    assert torch.equal(kept, made)


def test_a_4d_mask_that_hides_nothing_is_honoured(machine):
    model = load(MODELS / "llama")
    ids = torch.randint(3, model.config.vocab_size, (1, 20), generator=torch.Generator().manual_seed(1))
    wanted = logits(model, rounded_cache(model.config), ids, 20)
    model.set_attn_implementation("hayloft:dense")
    for first, second in zip(masks_of(causal(15, 15)), masks_of(causal(5, 20))):
        cache = plug.Cache(model.config, block_tokens=16, window=8, machine=machine)
        with torch.no_grad():
            made = [model(ids[:, :15], attention_mask=first, past_key_values=cache).logits[0],
                    model(ids[:, 15:], attention_mask=second, past_key_values=cache).logits[0]]
        assert (torch.cat(made) - wanted).abs().max() <= 2e-4 * wanted.abs().max()


def documents(queries, tokens, at):
    """Two documents in one sequence, the second of which begins at `at`."""
    shown = causal(queries, tokens).clone()
    shown[..., at - (tokens - queries):, :at] = False
    return shown


def test_a_4d_mask_that_hides_tokens_is_refused(machine):
    """Eager attention gives other logits by each of them; the store would ignore them."""
    model = load(MODELS / "llama")
    ids = torch.randint(3, model.config.vocab_size, (1, 20), generator=torch.Generator().manual_seed(1))
    plain = logits(model, rounded_cache(model.config), ids, 20)
    shown = documents(20, 20, 9)
    window, ahead, of_a_head = causal(20, 20).triu(-5), torch.ones(1, 1, 20, 20, dtype=torch.bool), causal(20, 20)
    of_a_head = of_a_head.repeat(1, model.config.num_attention_heads, 1, 1)
    of_a_head[0, 1, 7, 3] = False
    hidden = [mask for each in (shown, window, ahead, of_a_head) for mask in masks_of(each)]
    for mask in hidden:
        if mask.dtype == torch.float32:
            with torch.no_grad():
                eager = model(ids, attention_mask=mask, use_cache=False).logits[0]
            assert (eager - plain).abs().max() > 1e-3 * plain.abs().max()
    model.set_attn_implementation("hayloft:dense")

    def refused(mask, match, **options):
        cache = plug.Cache(model.config, machine=machine)
        with pytest.raises(hayloft.Error, match=match), torch.no_grad():
            model(ids, attention_mask=mask, past_key_values=cache, **options)

    for mask in hidden:
        refused(mask, "not the causal one")
    biased = as_numbers(causal(20, 20), torch.float32, float("-inf"))
    biased[0, 0, 9, 2] = -1.5
    refused(biased, "adds to scores")
    refused(causal(20, 20).long(), "torch.int64")
    refused(causal(20, 20)[..., :12], r"shape \[1, 1, 20, 12\]")
    with torch.no_grad():  # behind a prompt that was seen whole
        cache = plug.Cache(model.config, machine=machine)
        model(ids[:, :12], past_key_values=cache)
        with pytest.raises(hayloft.Error, match="not the causal one"):
            model(ids[:, 12:], attention_mask=documents(8, 20, 14), past_key_values=cache)
    # Without a cache PyTorch's attention takes the mask.
    with torch.no_grad():
        made = model(ids, attention_mask=shown, use_cache=False).logits[0]
        model.set_attn_implementation("sdpa")
        wanted = model(ids, attention_mask=shown, use_cache=False).logits[0]
    assert (made - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_mask_functions_of_a_model_are_refused_or_pytorchs(machine):
    """Packed documents by their positions, and attention to tokens behind, which models turn on by their configuration."""
    model = load(MODELS / "llama")
    ids = torch.randint(3, model.config.vocab_size, (1, 20), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(9), torch.arange(11)])[None]
    model.set_attn_implementation("hayloft:dense")
    with pytest.raises(hayloft.Error, match="mask of its own"), torch.no_grad():
        model(ids, position_ids=positions, use_cache=False)
    with torch.no_grad():  # one document, of which versions before 5 make a mask, too
        one = model(ids, position_ids=torch.arange(20)[None], use_cache=False).logits
        before = model(ids, use_cache=False).logits
        model.set_attn_implementation("sdpa")
        assert (one - model(ids, use_cache=False).logits).abs().max() <= 1e-5 * one.abs().max()
        model.config.is_causal = False
        behind = (model(ids, use_cache=False).logits - before).abs().max() > 1e-3  # versions before 5 do not look at it
        model.set_attn_implementation("hayloft:dense")
        if behind:
            with pytest.raises(hayloft.Error, match="mask of its own|tokens behind"):
                model(ids, past_key_values=plug.Cache(model.config, machine=machine))


def test_output_attentions_is_refused(machine):
    model = load(MODELS / "llama")
    ids = torch.randint(3, model.config.vocab_size, (1, 12), generator=torch.Generator().manual_seed(1))
    assert len(model(ids, output_attentions=True).attentions) == model.config.num_hidden_layers
    model.set_attn_implementation("hayloft:dense")
    for options in ({"use_cache": False}, {"past_key_values": plug.Cache(model.config, machine=machine)}):
        with pytest.raises(hayloft.Error, match="output_attentions"), torch.no_grad():
            model(ids, output_attentions=True, **options)
    with pytest.raises(hayloft.Error, match="output_attentions"):
        model.generate(ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_saved_context_goes_on(name, machine, tmp_path):
    """Also where layers have a sliding window, of which the file has the newest tokens."""
    folder = shutil.copytree(MODELS / name, tmp_path / name)
    (folder / "tokenizer.json").write_text("{}")  # a part of what tells models apart
    model = load(folder)
    ids = torch.randint(3, model.config.vocab_size, (1, 70), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        read = model(ids[:, :60], use_cache=True).past_key_values
        wanted = None
        for kind in ("read", "stored"):
            if kind == "stored":
                model.set_attn_implementation("hayloft:dense")
                read = plug.Cache(model.config, block_tokens=16, window=8, machine=machine)
                model(ids[:, :60], past_key_values=read)
            saved = hayloft.save_context(read, ids[:, :62], folder, tmp_path / (kind + ".hay"), block_tokens=16,
                                         machine=machine)
            assert saved == (62, 60)
            if wanted is None:
                wanted = model(ids[:, 60:], past_key_values=read).logits[0]
            model.set_attn_implementation("hayloft:dense")
            opened = plug.open_context(tmp_path / (kind + ".hay"), model, machine=machine)
            assert opened.tokens == ids[0, :62].tolist() and opened.get_seq_length() == 60
            made = model(ids[:, 60:], past_key_values=opened).logits[0]
            # K and V of the context have 11 bits there and 24 here.
            assert (made - wanted).abs().max() <= 5e-3 * wanted.abs().max()
    with pytest.raises(hayloft.Error, match="vocabulary"):
        hayloft.save_context(read, [9999] * 60, folder, tmp_path / "bad.hay", machine=machine)


@pytest.fixture(scope="session")
def smol(smollm2):
    pytest.importorskip("gguf")
    folder, name = smollm2.rsplit("/", 1)
    return load(folder, gguf_file=name)


@pytest.fixture(scope="session")
def book():
    text = (MODELS.parents[2] / "docs" / "design.md").read_text()
    return text[:3000]


@pytest.mark.parametrize("method", ["dense", "sparq:r=16:k=96", "topk:k=64"])
def test_generates_what_a_session_does(smol, smollm2, machine, book, method):
    model = hayloft.Model(smollm2, machine=machine)
    ids = model.encode(book)
    wanted = list(model.session(attn=method, block_tokens=64).stream(ids, 24))
    cache = plug.Cache(smol.config, block_tokens=64, machine=machine)
    made = smol.generate(torch.tensor([ids]), past_key_values=cache, attn_implementation="hayloft:" + method,
                         max_new_tokens=24, do_sample=False)[0, len(ids):].tolist()
    assert made == wanted[:len(made)] and len(made) == 24
    assert cache.counters.elements > 0


def test_a_context_read_by_transformers_is_asked_here(smol, smollm2, machine, book, tmp_path):
    model = hayloft.Model(smollm2, machine=machine)
    ids = model.encode(book)
    question = model.encode("\n\nIn short, a block is", continued=True)
    wanted = list(model.session(block_tokens=64).append(ids).stream(question, 24))
    with torch.no_grad():
        read = smol(torch.tensor([ids]), use_cache=True).past_key_values
        stored = plug.Cache(smol.config, block_tokens=64, machine=machine)
        smol.set_attn_implementation("hayloft:dense")
        smol(torch.tensor([ids]), past_key_values=stored)
        smol.set_attn_implementation("eager")
    for name, cache in (("read.hay", read), ("stored.hay", stored)):
        assert hayloft.save_context(cache, ids, smollm2, tmp_path / name, block_tokens=64,
                                    machine=machine) == (len(ids), len(ids))
        opened = model.open(tmp_path / name)
        assert opened.tokens == ids and len(opened) == len(ids)
        assert list(opened.stream(question, 24)) == wanted


def test_a_context_read_here_is_asked_by_transformers(smol, smollm2, machine, book, tmp_path):
    model = hayloft.Model(smollm2, machine=machine)
    session = model.session(block_tokens=64, attn="sparq:r=16:k=96").append(book)
    session.save(tmp_path / "book.hay")
    question = model.encode("\n\nIn short, a block is", continued=True)
    cache = plug.open_context(tmp_path / "book.hay", smol, machine=machine)
    assert cache.tokens == session.tokens and cache.get_seq_length() == len(session)
    ids = torch.tensor([cache.tokens + question])
    made = smol.generate(ids, past_key_values=cache, attn_implementation="hayloft:sparq:r=16:k=96", max_new_tokens=24,
                         do_sample=False)[0, ids.shape[1]:].tolist()
    assert made == list(session.stream(question, 24))
