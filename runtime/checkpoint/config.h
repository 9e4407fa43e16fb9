#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gpu/gated_delta.h"
#include "runtime/checkpoint/rope.h"

namespace hayloft::runtime {

// The function that a layer's gate goes through.
enum class Activation : std::uint8_t { silu, gelu_tanh, clamped };  // clamped: gpu::Backend::clamped_mul()

// Says where a layer has its RMS norms: before attention and MLP, on what they give before it is added, or both.
enum class Norms : std::uint8_t { before, after, both };

// Says what a layer keeps of the tokens before.
enum class LayerKind : std::uint8_t {
  global,    // K and V of all of them
  sliding,   // K and V of the newest
  recurrent  // a state of one size (gpu::DeltaState)
};

// Says what heads of K and V a layer has.
struct LayerHeads {
  int kv = 0;   // Hkv
  int dim = 0;  // d

  std::int64_t width() const { return std::int64_t{kv} * dim; }
  bool operator==(const LayerHeads&) const = default;
};

// Describes MLPs that are mixtures of experts: a token goes through the experts for which the router gives the largest
// logits, the smaller one of two that tie, and what they give is weighted by a softmax of these logits.
struct Experts {
  int count = 0;                 // of a layer; 0: there are none
  int used = 0;                  // of them, for each token
  int inner = 0;                 // of each, what intermediate_size is to an MLP
  int shared_inner = 0;          // of one that every token goes through, weighted by the sigmoid of a gate; 0: none
  bool share_of_chosen = true;   // the softmax is over a token's own experts, so that weights sum to one, or over all
  std::vector<bool> dense = {};  // [layers]: which have an MLP of dense_inner instead; empty: none has
  int dense_inner = 0;
  // Says how wide the MLP beside them is that every token goes through; 0: none. Both have a norm over what they give,
  // before it is added, and the router and the experts see the residual stream under norms of their own (gemma4).
  int beside_inner = 0;
  bool biases = false;  // the router has them, and the matrices of each expert

  bool in(int layer) const { return count > 0 && (dense.empty() || !dense[static_cast<std::size_t>(layer)]); }
};

// A decoder-only transformer as its config.json describes it. Architectures: llama, mistral, ministral (a mistral with
// layer_types), ministral3, qwen2, qwen3, qwen3_5_text, smollm3, gemma3_text, gemma4_text, phi3, granite, olmo2; with
// experts mixtral, qwen2_moe, qwen3_moe, qwen3_5_moe_text, olmoe, granitemoe, gpt_oss, gemma4_text; and those of
// register_architecture() (runtime/checkpoint/architecture.h).
struct ModelConfig {
  std::string architecture;  // config.json's model_type
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;  // with experts: of those that a token goes through, together, or of a wider dense layer
  Experts experts;
  int layers = 0;
  int query_heads = 0;       // Hq
  int kv_heads = 0;          // Hkv, a divisor of Hq
  int head_dim = 0;          // d, a multiple of 8 up to offload::most_head_dim
  int sliding_kv_heads = 0;  // of layers that slide, where these have heads of another shape (gemma4); 0: as the others
  int sliding_head_dim = 0;  // likewise
  float rms_norm_eps = 1e-6f;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;         // RMS norm over each head of q and k before RoPE (qwen3)
  bool qk_norm_whole = false;   // over all heads of q, and all of k, at once (olmo2)
  bool value_norm = false;      // RMS norm over each head of v, without weights (gemma4)
  bool keys_as_values = false;  // in global layers v is what k_proj gives, before norm and RoPE (gemma4)
  // Each head of what attention gives is multiplied by the sigmoid of as many gates, whose weights lie in q_proj,
  // behind those of the head's queries (qwen3_5).
  bool attention_gate = false;
  bool fused = false;  // q, k and v lie in one matrix, gate and up in another (phi3)
  Norms norms = Norms::before;
  bool norms_less_one = false;  // norms are stored as what is added to one (gemma)
  Activation activation = Activation::silu;
  float activation_limit = 0;    // of Activation::clamped
  bool attention_sinks = false;  // each query head has a logit of its own: gpu::CacheView::sinks

  float embedding_scale = 1;  // multiplies the embeddings
  float residual_scale = 1;   // what attention and MLP add to the residual stream
  float logit_scale = 1;      // the logits
  float logit_cap = 0;        // not 0: logits become cap * tanh(logit / cap)
  bool layer_scales = false;  // the residual stream behind each layer is multiplied by a number of its own (gemma4)
  float attention_scale = 0;  // the products of queries and keys; 0: 1/sqrt(d)
  // Queries at position p are multiplied by 1 + query_log_scale * ln(1 + floor(p / query_scale_positions))
  // (ministral3).
  float query_log_scale = 0;
  std::int64_t query_scale_positions = 0;

  std::vector<std::int64_t> sliding_window;  // [layers]: positions attended, the own one included; 0: no such layer
  std::vector<bool> recurrent;               // [layers], or empty where none is
  gpu::DeltaShape delta;                     // of recurrent layers
  std::vector<bool> rope;                    // [layers]: false = NoPE
  RopeParameters global_rope;                // as the checkpoint has them, or the user
  RopeParameters local_rope;       // of sliding-window layers, where they have their own; dimensions is 0 else
  RopeTable global_table;          // made of them by set_rope()
  RopeTable local_table;           // empty where sliding-window layers have none of their own
  std::string rope_overrides;      // RopeOverrides::text()
  std::int64_t max_positions = 0;  // what the model was made for, RoPE scaling included. Not a limit here.
  std::int64_t own_positions = 0;  // the same before a user's RoPE scaling; 0: there is none
  // Not 0: past so many positions the model was made for dual chunk attention (arXiv 2402.17463), which is not here;
  // max_positions is then no more.
  std::int64_t dual_chunk_positions = 0;
  int draft_layers = 0;  // of the head that predicts further tokens, as the files say (runtime/checkpoint/draft_head.h)
  bool draft_own_tables = false;         // that head has embeddings of its own
  std::vector<std::int32_t> eos_tokens;  // may be empty
  std::vector<std::string> notes;        // a line each on what the files say and nothing here heeds

  int group_size() const { return query_heads / kv_heads; }  // in global layers
  LayerHeads heads(int layer) const;
  LayerHeads sliding_heads() const;
  int widest_head() const;         // components, in whatever layer
  std::int64_t widest_kv() const;  // LayerHeads::width(), in whatever layer
  int feed_forward_width() const;  // the most rows of a matrix of an MLP or of an expert
  LayerKind kind(int layer) const;
  int count(LayerKind kind) const;
  int global_layers() const { return count(LayerKind::global); }  // how many layers have a cache in host memory
  // Returns whether keys and values depend on what a global layer attends to: on that of the last layer none does.
  bool caches_behind_global() const {
    return global_layers() > (layers > 0 && kind(layers - 1) == LayerKind::global ? 1 : 0);
  }
};

// Takes the overrides over into the parameters of global layers' RoPE, and makes the tables for contexts of `positions`
// tokens (0: as long as the model was made for). max_positions becomes what the scaling serves. Throws Error on what
// the model cannot have.
void set_rope(ModelConfig& config, const RopeOverrides& overrides = {}, std::int64_t positions = 0);

// Limits max_positions of models that were made for dual chunk attention past `chunk` of them; 0: the models of the
// architectures qwen2 and qwen3 that name more than 262,144 and no scaling of their RoPE. Before set_rope().
void limit_to_one_chunk(ModelConfig& config, std::int64_t chunk = 0);

// Reads DIR/config.json (and generation_config.json for the end-of-text tokens, if it is there); where it describes
// more than a language model, its text_config. Throws Error naming the file and field: unknown architecture, missing or
// mistyped field, a value out of range, an unknown RoPE scaling.
ModelConfig read_config(const std::filesystem::path& directory);

}  // namespace hayloft::runtime
