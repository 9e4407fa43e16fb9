"""The needle model's forward pass, and the initialisation that lets it learn the task.

The weights live in transformers' SmolLM3ForCausalLM, which is also how they are saved.
The forward pass is our own: it is split into the local layers, whose cost is linear in
the context, and the global layer, whose queries are needed at a few positions only.
"""

import torch
import torch.nn.functional as F
from transformers import SmolLM3Config, SmolLM3ForCausalLM

WINDOW = 32  # tokens a local layer sees, the current one included
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
GROUP = HEADS // KV_HEADS
ROPE_THETA = 10_000.0


def create(vocabulary: int, width: int, local_layers: int = 3) -> SmolLM3ForCausalLM:
    config = SmolLM3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=local_layers + 1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=1 << 21,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        layer_types=["sliding_attention"] * local_layers + ["full_attention"],
        no_rope_layers=[1] * local_layers + [0],
        use_sliding_window=True,
        sliding_window=WINDOW,
        attention_bias=True,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    model = SmolLM3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:  # transformers' 0.02 is too small for so narrow a model
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    start_near_the_circuit(model)
    return model


@torch.no_grad()
def start_near_the_circuit(model: SmolLM3ForCausalLM) -> None:
    """From a random start the model must discover "look a few tokens back" and "match, then
    copy" at the same time, and neither has a gradient without the other. So both are planted.
    """
    fast = 12  # rotary pairs that tell neighbouring offsets apart
    frequency = ROPE_THETA ** (-torch.arange(fast) * 2 / HEAD_DIM)
    *local, last = (layer.self_attn for layer in model.model.layers)
    for attention in local:
        # Offset heads: with a key bias u and a query bias of u rotated by -(h + 1) positions,
        # query head h looks h + 1 tokens back whatever the content.
        attention.q_proj.weight.mul_(0.1)
        attention.k_proj.weight.mul_(0.1)
        # What a head adds to the stream starts no larger than the token's own embedding.
        attention.o_proj.weight.mul_(model.config.hidden_size**-0.5)
        key = attention.k_proj.bias.view(KV_HEADS, 2, HEAD_DIM // 2).zero_()
        key[:, 0, :fast] = 2.8
        query = attention.q_proj.bias.view(HEADS, 2, HEAD_DIM // 2).zero_()
        for head in range(HEADS):
            angle = -(head + 1) * frequency
            query[head, 0, :fast] = 2.8 * angle.cos()
            query[head, 1, :fast] = 2.8 * angle.sin()
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.mul_(0.1 * model.config.hidden_size**-0.5)
    # Copy heads: what a head of the global layer reads, it adds to the stream unchanged in
    # direction, where the tied embedding turns it back into the token it came from.
    value = last.v_proj.weight.view(KV_HEADS, HEAD_DIM, -1).repeat_interleave(GROUP, 0)
    last.o_proj.weight.copy_(0.5 * value.flatten(0, 1).T)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _local_attention(attention, x: torch.Tensor) -> torch.Tensor:
    """Sliding-window attention in blocks of WINDOW: a block sees itself and the one before."""
    batch, tokens, _ = x.shape
    blocks = tokens // WINDOW
    frequency = ROPE_THETA ** (-torch.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
    angle = torch.arange(tokens)[:, None, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    q = _rotate(attention.q_proj(x).view(batch, tokens, HEADS, HEAD_DIM), cos, sin)
    k = _rotate(attention.k_proj(x).view(batch, tokens, KV_HEADS, HEAD_DIM), cos, sin)
    v = attention.v_proj(x).view(batch, tokens, KV_HEADS, HEAD_DIM)

    def with_previous_block(t):
        t = t.view(batch, blocks, WINDOW, KV_HEADS, HEAD_DIM)
        t = torch.cat((F.pad(t, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1], t), dim=2)
        return t.flatten(0, 1).transpose(1, 2).repeat_interleave(GROUP, 1)

    i = torch.arange(WINDOW)[:, None] + WINDOW
    j = torch.arange(2 * WINDOW)
    seen = ((j <= i) & (i - j < WINDOW)).repeat(batch, blocks, 1, 1)
    seen[:, 0] &= j >= WINDOW  # nothing comes before the first block
    y = F.scaled_dot_product_attention(
        q.view(batch * blocks, WINDOW, HEADS, HEAD_DIM).transpose(1, 2),
        with_previous_block(k),
        with_previous_block(v),
        attn_mask=seen.view(batch * blocks, 1, WINDOW, 2 * WINDOW),
    )
    return attention.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))


def local_layers(model: SmolLM3ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Ids [batch, tokens], tokens a multiple of WINDOW; returns the global layer's input."""
    x = model.model.embed_tokens(ids)
    for layer in model.model.layers[:-1]:
        x = x + _local_attention(layer.self_attn, layer.input_layernorm(x))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x


def global_keys_values(model: SmolLM3ForCausalLM, x: torch.Tensor):
    """K and V of the global layer, each [batch, KV_HEADS, tokens, HEAD_DIM]."""
    layer = model.model.layers[-1]
    x = layer.input_layernorm(x)
    shape = (*x.shape[:2], KV_HEADS, HEAD_DIM)
    return tuple(
        projection(x).view(shape).transpose(1, 2)
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj)
    )


def global_queries(model: SmolLM3ForCausalLM, x: torch.Tensor) -> torch.Tensor:
    """Queries [batch, KV_HEADS, GROUP, positions, HEAD_DIM] of x [batch, positions, width]."""
    layer = model.model.layers[-1]
    q = layer.self_attn.q_proj(layer.input_layernorm(x))
    return q.view(*x.shape[:2], KV_HEADS, GROUP, HEAD_DIM).permute(0, 2, 3, 1, 4)


def logits(model: SmolLM3ForCausalLM, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What follows attention: y is its output, shaped as the queries of x."""
    layer = model.model.layers[-1]
    x = x + layer.self_attn.o_proj(y.permute(0, 3, 1, 2, 4).flatten(2))
    x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(model.model.norm(x))


def forward_at(model, ids, positions, bias=None) -> torch.Tensor:
    """Logits [batch, positions, vocabulary] at positions [batch, positions] of ids.

    bias [batch, tokens] is added to the scores of the global layer.
    """
    x = local_layers(model, ids)
    k, v = global_keys_values(model, x)
    x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
    score = global_queries(model, x) @ k.unsqueeze(2).transpose(-1, -2) / HEAD_DIM**0.5
    if bias is not None:
        score = score + bias[:, None, None, None]
    future = torch.arange(ids.shape[1]) > positions[..., None]
    score = score.masked_fill(future[:, None, None], float("-inf"))
    return logits(model, x, score.softmax(-1) @ v.unsqueeze(2))
