#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "runtime/checkpoint/config.h"

namespace hayloft {
class JsonFields;
}

namespace hayloft::runtime {

// The fields of a config.json, as an architecture reads those of its own. A field that is null counts as absent; one of
// another type, or out of range, is an Error that names file and field. A view, valid while it is handed out.
class ConfigFields {
 public:
  explicit ConfigFields(const JsonFields& fields) : fields_(fields) {}

  bool has(const char* name) const;  // there, and not null
  bool boolean(const char* name, bool absent) const;
  std::int64_t integer(const char* name, std::int64_t absent, std::int64_t least, std::int64_t most) const;
  double positive(const char* name, double absent) const;  // a finite number above zero
  std::string text(const char* name, const std::string& absent) const;

  const std::string& where() const;  // the file, for messages
  // Throws the Error "FILE: name is VALUE; it must be `expected`".
  [[noreturn]] void refuse(const char* name, const std::string& expected) const;

 private:
  friend void register_architecture(struct Architecture architecture);
  const nlohmann::json* find(const char* name) const;
  // Refuses fields by which models compute something else, though their weights look the same, unless they were read.
  void refuse_unread(const ModelConfig& config) const;

  const JsonFields& fields_;
  mutable std::set<std::string> read_;
};

// Says what an expert's output is multiplied by: a softmax over the token's own experts, over all, or the first where
// norm_topk_prob is true and else the second.
enum class ExpertShares : std::uint8_t { of_chosen, of_all, as_said };

// The fields of a config.json that say of what its mixtures of experts are made, and what holds where they are absent.
struct ExpertFields {
  std::string count_field = "num_experts";
  int count = 0;  // 0: the architecture has no experts
  int used = 0;
  std::string inner_field = "moe_intermediate_size";
  int inner = 0;
  ExpertShares shares = ExpertShares::of_chosen;
  int shared_inner = 0;     // shared_expert_intermediate_size; 0: not read
  bool some_dense = false;  // mlp_only_layers and decoder_sparse_step say of layers that they have none
  std::string used_field = "num_experts_per_tok";
  // The field that says whether the model has experts at all, and then all of these are in the file; empty: it has.
  std::string enabling_field = {};
  bool beside_mlp = false;  // an MLP of intermediate_size is beside them (Experts::beside_inner)
};

// A decoder-only transformer that departs from Llama in parts of ModelConfig: what it takes for granted where its
// config.json does not say (the defaults of the Hugging Face configuration class), and what it is made of.
struct Architecture {
  std::string name;  // config.json's model_type
  int kv_heads = 0;  // 0: as many as query heads
  int head_dim = 0;  // 0: hidden_size / num_attention_heads
  std::int64_t max_positions = 2048;
  double rope_theta = 1e4;
  bool tied_embeddings = false;
  std::int32_t eos_token = -1;  // -1: none
  double rms_norm_eps = 1e-6;
  bool reads_attention_bias = false;  // attention_bias: of q, k, v and o alike, false where it is absent
  bool reads_mlp_bias = false;        // mlp_bias: of gate, up and down, likewise
  Activation activation = Activation::silu;
  std::string activation_field = "hidden_act";  // which may say that activation and no other

  // Sets what is not as Llama has it; may be empty. By then the shape, the biases above and the activation are set, and
  // sliding_window and rope have an entry for each layer: the window where the file's layer_types says
  // sliding_attention, else 0, and true. It may set biases, norms, fused and scales, and these entries; what it leaves
  // false or 0 the weights need not have. RoPE is read thereafter, as Llama's: over whole heads, one for all layers.
  // Scales, caps, windows and layers without RoPE that the file gives and this does not read are refused.
  std::function<void(const ConfigFields& fields, ModelConfig& config)> set_parts = {};

  ExpertFields experts = {};  // whose tensors have the names of those of any built-in architecture
};

// Makes it one of those that read_config() knows, and so every Model of a folder. Tensors have the names of Llama's, or
// of the built-in architecture that has the part: q_norm.weight, pre_feedforward_layernorm.weight ... A GGUF file's
// architectures are hayloft's own: one of another is refused. Thread-safe; what is registered stays for as long as the
// process lives, and set_parts may be called from any thread. Throws Error on a name that is taken or has other
// characters than letters, digits, '_', '-' and '.'.
void register_architecture(Architecture architecture);

}  // namespace hayloft::runtime
