#include <algorithm>
#include <array>
#include <string>

#include "offload/error.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {
namespace {

// Weights that lie in the files in another form than their shapes say.
constexpr std::array<const char*, 2> other_weights = {"quantization", "compression_config"};

// Fields that say nothing about what a decoder computes of a text: names and versions, training, what is done with the
// outputs, tokens that the tokenizer knows too, and fields of one architecture that is read by another's rules.
constexpr std::array<std::string_view, 79> without_effect_in_config = {"architectures",
                                                                       "transformers_version",
                                                                       "torch_dtype",
                                                                       "dtype",
                                                                       "_name_or_path",
                                                                       "_commit_hash",
                                                                       "auto_map",
                                                                       "_attn_implementation",
                                                                       "_attn_implementation_autoset",
                                                                       "attn_implementation",
                                                                       "use_cache",
                                                                       "cache_implementation",
                                                                       "use_return_dict",
                                                                       "return_dict",
                                                                       "output_attentions",
                                                                       "output_hidden_states",
                                                                       "output_router_logits",
                                                                       "router_aux_loss_coef",
                                                                       "router_jitter_noise",
                                                                       "torchscript",
                                                                       "use_bfloat16",
                                                                       "pruned_heads",
                                                                       "chunk_size_feed_forward",
                                                                       "is_encoder_decoder",
                                                                       "is_decoder",
                                                                       "add_cross_attention",
                                                                       "cross_attention_hidden_size",
                                                                       "tie_encoder_decoder",
                                                                       "tf_legacy_loss",
                                                                       "finetuning_task",
                                                                       "problem_type",
                                                                       "id2label",
                                                                       "label2id",
                                                                       "num_labels",
                                                                       "tokenizer_class",
                                                                       "prefix",
                                                                       "task_specific_params",
                                                                       "gradient_checkpointing",
                                                                       "initializer_range",
                                                                       "attention_dropout",
                                                                       "hidden_dropout",
                                                                       "resid_pdrop",
                                                                       "embd_pdrop",
                                                                       "residual_dropout",
                                                                       "bos_token_id",
                                                                       "pad_token_id",
                                                                       "sep_token_id",
                                                                       "decoder_start_token_id",
                                                                       "unk_token_id",
                                                                       "pretraining_tp",
                                                                       "max_window_layers",
                                                                       "no_rope_layer_interval",
                                                                       "use_sliding_window",
                                                                       "hidden_act",
                                                                       "mlp_only_layers",
                                                                       "decoder_sparse_step",
                                                                       "norm_topk_prob",
                                                                       "swiglu_alpha",
                                                                       "swiglu_limit",
                                                                       "experts_per_token",
                                                                       "mtp_num_hidden_layers",
                                                                       "mtp_use_dedicated_embeddings",
                                                                       "mamba_ssm_dtype",
                                                                       "unsloth_fixed",
                                                                       "unsloth_version",
                                                                       "initial_context_length",
                                                                       "vocab_file",
                                                                       "seq_length",
                                                                       "n_ctx",
                                                                       "default_theta",
                                                                       "base_model_tp_plan",
                                                                       "text_config",
                                                                       "_sliding_window_pattern",
                                                                       "sliding_window_pattern",
                                                                       "generation_config",
                                                                       "attn_output_gate",
                                                                       "original_max_position_embeddings",
                                                                       "is_llama_config",
                                                                       "transformers.js_config"};

// Fields of transformers before it had generation_config.json; sampling_defaults() reads them where that is missing.
constexpr std::array<std::string_view, 33> of_generation = {"max_length",
                                                            "max_new_tokens",
                                                            "min_length",
                                                            "min_new_tokens",
                                                            "do_sample",
                                                            "early_stopping",
                                                            "num_beams",
                                                            "num_beam_groups",
                                                            "diversity_penalty",
                                                            "temperature",
                                                            "top_k",
                                                            "top_p",
                                                            "min_p",
                                                            "typical_p",
                                                            "repetition_penalty",
                                                            "length_penalty",
                                                            "no_repeat_ngram_size",
                                                            "encoder_no_repeat_ngram_size",
                                                            "bad_words_ids",
                                                            "num_return_sequences",
                                                            "output_scores",
                                                            "return_dict_in_generate",
                                                            "forced_bos_token_id",
                                                            "forced_eos_token_id",
                                                            "remove_invalid_values",
                                                            "exponential_decay_length_penalty",
                                                            "suppress_tokens",
                                                            "begin_suppress_tokens",
                                                            "epsilon_cutoff",
                                                            "eta_cutoff",
                                                            "guidance_scale",
                                                            "renormalize_logits",
                                                            "penalty_alpha"};

template <class Names>
bool among(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::ranges::end(names);
}

// layer_types where the architecture has one kind of layer alone.
bool all_attend_to_all(const nlohmann::json& types) {
  return types.is_array() &&
         std::ranges::all_of(types, [](const auto& type) { return type == "full_attention" || type == "attention"; });
}

void note_names(const std::vector<std::string>& unread, std::span<const std::string_view> known,
                const std::string& where, ModelConfig& config) {
  std::string names;
  for (const std::string& name : unread) {
    if (!among(known, name)) names += (names.empty() ? "" : ", ") + printable(name);
  }
  if (names.empty()) return;
  config.notes.push_back(
      fmt::format("{}: the architecture {} takes no notice of: {}", where, config.architecture, names));
}

}  // namespace

void note_unread(const JsonFields& fields, std::span<const std::string_view> known, ModelConfig& config) {
  note_names(fields.unread(), known, fields.where(), config);
}

void look_at_unread(const JsonFields& fields, ModelConfig& config) {
  for (const char* name : other_weights) {
    if (fields.find(name)) {
      fail("{}: {} is set; hayloft reads checkpoints in f32, f16 and bf16", fields.where(), name);
    }
  }
  // A field of any architecture, to transformers, which takes null for false.
  const bool null = fields.is_null("is_causal");
  if (null || !fields.boolean_or("is_causal", true)) {
    fields.refuse("is_causal", null ? nlohmann::json() : nlohmann::json(false), "true for a model that writes text");
  }
  std::vector<std::string_view> known(without_effect_in_config.begin(), without_effect_in_config.end());
  known.insert(known.end(), of_generation.begin(), of_generation.end());
  const std::vector<std::string> unread = fields.unread();
  const nlohmann::json* const types = fields.find("layer_types");
  if (types && all_attend_to_all(*types)) known.push_back("layer_types");
  note_names(unread, known, fields.where(), config);
}

}  // namespace hayloft::runtime
