"""Caches of transformers beside hayloft's: what is copied, cropped, shared and saved of them."""

import copy
import shutil

import pytest
from conftest import MODELS, NEEDLE_MODEL

import hayloft

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from test_transformers import load, plug  # noqa: E402
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
    GenerationConfig,
    StaticCache,
)
from transformers.cache_utils import QuantizedLayer  # noqa: E402

SMALL = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "pad_token_id": 0}


def small(kind, **options):
    """A model with random weights of a kind that has no golden."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**SMALL, **options})
    return AutoModelForCausalLM.from_config(config, attn_implementation="hayloft:dense", dtype=torch.float32).eval()


def random_ids(tokens):
    return torch.randint(3, 128, (1, tokens), generator=torch.Generator().manual_seed(1))


def test_layers_that_share_keys_are_refused(machine):
    """The last layers of Gemma 3n attend to keys of earlier ones, which would go into the store twice."""
    model = small("gemma3n_text", sliding_window=24, layer_types=["sliding_attention", "full_attention"] * 2,
                  num_kv_shared_layers=2, vocab_size_per_layer_input=128, hidden_size_per_layer_input=8,
                  activation_sparsity_pattern=None)
    with pytest.raises(hayloft.Error, match="shares the keys of layer 1|the keys of a layer are in"), torch.no_grad():
        model(random_ids(20), past_key_values=plug.Cache(model.config, machine=machine))


def test_soft_caps_of_sliding_window_layers_are_refused(machine):
    model = small("gemma2", sliding_window=24)
    with pytest.raises(hayloft.Error, match="attends with softcap"), torch.no_grad():
        model(random_ids(20), past_key_values=plug.Cache(model.config, machine=machine))


def test_a_configuration_may_say_use_cache_false(machine):
    model = load(MODELS / "llama")
    ids = random_ids(30)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    wanted = model.generate(ids, **options).tolist()
    without = GenerationConfig(use_cache=False, **options)
    dense = "hayloft:dense"
    assert model.generate(ids, generation_config=without, attn_implementation=dense).tolist() == wanted
    assert model.generate(ids, without, attn_implementation=dense).tolist() == wanted
    assert model.generate(ids, without, use_cache=True, attn_implementation=dense).tolist() == wanted
    model.generation_config.use_cache = False
    assert model.generate(ids, attn_implementation=dense, **options).tolist() == wanted
    assert model.generate(ids, GenerationConfig(**options), attn_implementation=dense).tolist() == wanted
    for said in ({}, {"use_cache": False}):
        with pytest.raises(hayloft.Error, match="use_cache=False"):  # transformers would append all tokens at each step
            model.generate(ids, attn_implementation=dense, past_key_values=plug.Cache(model.config, machine=machine), **said,
                           **options)


def test_parts_of_a_model_get_their_own_attention_back(machine):
    config = AutoConfig.for_model(
        "gemma3", text_config={**SMALL, "layer_types": ["full_attention"] * 4}, mm_tokens_per_image=1,
        vision_config={"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
                       "patch_size": 14})
    model = AutoModelForImageTextToText.from_config(config, attn_implementation={"text_config": "eager", "vision_config": "sdpa"}).eval()

    def attention():
        parts = model.config, model.config.text_config, model.config.vision_config
        return [each._attn_implementation for each in parts]

    before = attention()
    assert before[1:] == ["eager", "sdpa"]
    model.generate(random_ids(20), attn_implementation="hayloft:dense", max_new_tokens=2, do_sample=False)
    assert attention() == before


def test_a_model_that_attends_by_itself_is_refused():
    """Bloom's attention does not go by the interface: it would be exact, without a word."""
    def config():
        return transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2)

    with pytest.raises(hayloft.Error, match="BloomForCausalLM: attends by itself"):
        transformers.BloomForCausalLM._from_config(config(), attn_implementation="hayloft:topk:k=4")
    model = transformers.BloomForCausalLM(config())
    with pytest.raises(hayloft.Error, match="BloomForCausalLM: attends by itself"):
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, attn_implementation="hayloft:topk:k=4")
    for words in ("hayloft:topk:k=4", {"": "hayloft:dense"}):
        with pytest.raises(hayloft.Error, match="BloomForCausalLM: attends by itself"):
            model.set_attn_implementation(words)
    model.set_attn_implementation("eager")


def test_a_mask_of_too_few_tokens_is_refused(machine):
    """It hides those behind it from PyTorch's attention."""
    model = load(MODELS / "llama", "sdpa")
    ids, mask = random_ids(20), torch.ones(1, 15, dtype=torch.long)
    with torch.no_grad():
        plain, hidden = model(ids).logits, model(ids, attention_mask=mask).logits
    assert (plain - hidden).abs().max() > 1e-3
    model.set_attn_implementation("hayloft:dense")
    with pytest.raises(hayloft.Error, match="of 15 tokens and hides those behind"), torch.no_grad():
        model(ids, attention_mask=mask, past_key_values=plug.Cache(model.config, machine=machine))


@pytest.mark.parametrize("which", ["keys", "values"])
def test_keys_and_values_beyond_16_bits_are_refused(machine, which):
    model = load(MODELS / "llama", "hayloft:dense")
    with torch.no_grad():
        getattr(model.model.layers[1].self_attn, which[0] + "_proj").weight.mul_(1e8)
        with pytest.raises(hayloft.Error, match=f"the {which} of layer 1 reach .* at most 65504"):
            model(random_ids(20), past_key_values=plug.Cache(model.config, machine=machine))


def test_a_copy_is_refused(machine):
    model = load(MODELS / "llama")
    with pytest.raises(hayloft.Error, match="open it by hayloft.transformers.open_context"):
        copy.deepcopy(plug.Cache(model.config, machine=machine))


def test_a_crop_that_is_refused_leaves_sliding_windows_whole(machine):
    model = load(MODELS / "gemma3", "hayloft:dense")
    ids = random_ids(9)
    made = []
    for cropped in (False, True):
        cache = plug.Cache(model.config, machine=machine)
        with torch.no_grad():
            model(ids[:, :5], past_key_values=cache)
            if cropped:
                with pytest.raises(hayloft.Error, match="cannot forget"):
                    cache.crop(**{"tokens_to_remove": -1} if int(transformers.__version__.split(".")[0]) >= 5 else {"max_length": 4})
            made.append(model(ids[:, 5:], past_key_values=cache).logits)
    assert torch.equal(*made)


def folder_of(name, tmp_path):
    folder = shutil.copytree(MODELS / name, tmp_path / name)
    (folder / "tokenizer.json").write_text("{}")  # a part of what tells models apart
    return folder


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_static_cache_is_saved_as_far_as_it_was_read(name, machine, tmp_path):
    """Not with the zeros behind, for which there may be ids, too."""
    folder = folder_of(name, tmp_path)
    model = load(folder)
    ids = random_ids(90)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=80)):
        with torch.no_grad():
            model(ids[:, :60], past_key_values=cache)
        path = tmp_path / (type(cache).__name__ + ".hay")
        assert hayloft.save_context(cache, ids, folder, path, block_tokens=16, machine=machine) == (90, 60)
    dynamic, static = (plug.open_context(tmp_path / (kind + ".hay"), model, machine=machine) for kind in ("DynamicCache", "StaticCache"))
    for layer in range(model.config.num_hidden_layers):
        for one, other in zip(dynamic._open.kv(layer)[:2], static._open.kv(layer)[:2]):
            keep = min(one.shape[1], other.shape[1])  # of a sliding window one may hold a token more
            assert keep >= 7 and (abs(one[:, -keep:] - other[:, -keep:]) <= 2e-3 * abs(one).max()).all()


class Quantised(QuantizedLayer):
    def _quantize(self, tensor, axis):
        return tensor.clone()

    def _dequantize(self, tensor):
        return tensor


def test_a_quantised_cache_is_not_saved_in_part(machine, tmp_path):
    folder = folder_of("llama", tmp_path)
    model = load(folder)
    ids = random_ids(45)
    cache = DynamicCache(config=model.config)
    cache.layers = [Quantised(residual_length=32) for _ in cache.layers]
    with torch.no_grad():
        for part in (ids[:, :40], ids[:, 40:]):
            model(part, past_key_values=cache)
    with pytest.raises(hayloft.Error, match="keys of 5 of the 45 tokens"):
        hayloft.save_context(cache, ids, folder, tmp_path / "part.hay", machine=machine)


def test_how_a_context_was_read_stays_with_it(machine, tmp_path):
    read = hayloft.Model(str(NEEDLE_MODEL), machine=machine)
    session = read.session(block_tokens=64, prefill="window:window=32:sinks=4").append("The token behind the needle is read. " * 20)
    session.save(tmp_path / "read.hay")
    config = AutoConfig.from_pretrained(NEEDLE_MODEL)
    cache = plug.open_context(tmp_path / "read.hay", config, machine=machine)
    assert cache.read_by.startswith("window") and plug.Cache(config, machine=machine).read_by == ""
    hayloft.save_context(cache, cache.tokens, str(NEEDLE_MODEL), tmp_path / "again.hay", machine=machine)
    for name in ("read.hay", "again.hay"):
        assert "the prompt was read by window" in read.open(tmp_path / name).attention


def test_tokens_that_transformers_decodes_approximately_are_saved_as_such(machine, tmp_path):
    folder = folder_of("llama", tmp_path)
    model = load(folder)
    ids = random_ids(900)
    for method in ("topk:k=4", "dense"):
        cache = plug.Cache(model.config, machine=machine, block_tokens=64)
        with torch.no_grad():
            model.set_attn_implementation(f"hayloft:{method}")
            model(ids, past_key_values=cache)
        path = tmp_path / f"{method[:4]}.hay"
        hayloft.save_context(cache, ids, folder, path, machine=machine)
        said = "topk k=4 where it was decoded" if method != "dense" else ""
        assert cache.read_by == said and plug.open_context(path, model.config, machine=machine).read_by == said
