// generation_config.json, as Hugging Face transformers reads it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/chat/sampling_defaults_files.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;

constexpr std::int64_t most_token_ids = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t longest_run = 1 << 20;
constexpr std::size_t most_listed = 1 << 20;

// Fields by which transformers draws other tokens, and the value at which they do nothing; none of them is here. Null
// does nothing either. To a decoder, what encoders have read is its prompt.
struct Unsupported {
  const char* name;
  json neutral;
};
const std::vector<Unsupported>& unsupported_fields() {
  static const std::vector<Unsupported> fields = {{"num_beams", 1},
                                                  {"num_beam_groups", 1},
                                                  {"diversity_penalty", 0},
                                                  {"penalty_alpha", 0},
                                                  {"dola_layers", nullptr},
                                                  {"guidance_scale", 1},
                                                  {"sequence_bias", nullptr},
                                                  {"exponential_decay_length_penalty", nullptr},
                                                  {"watermarking_config", nullptr},
                                                  {"constraints", nullptr},
                                                  {"force_words_ids", nullptr},
                                                  {"token_healing", false},
                                                  {"top_h", nullptr},
                                                  {"encoder_repetition_penalty", 1},
                                                  {"encoder_no_repeat_ngram_size", 0},
                                                  {"stop_strings", nullptr},
                                                  {"forced_bos_token_id", nullptr},
                                                  {"forced_eos_token_id", nullptr}};
  return fields;
}

// Names what is read here or by the configuration, and what says nothing about the tokens of one answer: lengths that
// the options of a command say, machinery and outputs of transformers, and encoders that there are not.
constexpr std::array<std::string_view, 65> heeded_or_meaningless = {
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids",
    "min_length", "min_new_tokens", "eos_token_id",
    //
    "bos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config",
    "max_length", "max_new_tokens", "max_time", "use_cache", "cache_implementation", "cache_config", "max_cache_len",
    "return_legacy_cache", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "num_return_sequences", "low_memory", "compile_config", "disable_compile",
    "continuous_batching_config", "prefill_chunk_size", "early_stopping", "length_penalty", "renormalize_logits",
    "remove_invalid_values", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "use_mtp",
    "_commit_hash", "generation_kwargs", "trust_remote_code", "_name_or_path", "architectures", "model_type", "dtype",
    "torch_dtype", "is_encoder_decoder"};

float sampling_number(const JsonFields& fields, const SamplingRange& range, float absent) {
  const json* value = fields.find(range.name);
  if (!value) return absent;
  if (!value->is_number() || !range.holds(value->get<double>())) fields.refuse(range.name, *value, range.text());
  return value->get<float>();
}

std::vector<std::int32_t> token_list(const JsonFields& fields, const char* name, const json& value) {
  std::vector<std::int32_t> tokens;
  if (!value.is_array() || value.size() > most_listed) fields.refuse(name, value, "a list of token ids");
  for (const json& each : value) {
    std::int64_t token = 0;
    if (!read_integer(each, 0, most_token_ids, token)) fields.refuse(name, each, "a list of token ids");
    tokens.push_back(static_cast<std::int32_t>(token));
  }
  return tokens;
}

std::vector<std::int32_t> token_list(const JsonFields& fields, const char* name) {
  const json* value = fields.find(name);
  return value ? token_list(fields, name, *value) : std::vector<std::int32_t>();
}

LogitRules read_rules(const JsonFields& fields) {
  LogitRules rules;
  rules.repetition_penalty = sampling_number(fields, repetition_range, 1);
  rules.no_repeat_ngram_size = static_cast<int>(fields.integer_or("no_repeat_ngram_size", 0, 0, longest_run));
  rules.min_new_tokens = static_cast<int>(fields.integer_or("min_new_tokens", 0, 0, most_sampled_candidates));
  rules.min_length = fields.integer_or("min_length", 0, 0, std::int64_t{1} << 40);
  rules.suppress_tokens = token_list(fields, "suppress_tokens");
  rules.begin_suppress_tokens = token_list(fields, "begin_suppress_tokens");
  if (const json* words = fields.find("bad_words_ids")) {
    if (!words->is_array()) fields.refuse("bad_words_ids", *words, "a list of lists of token ids");
    for (const json& word : *words) {
      rules.bad_words_ids.push_back(token_list(fields, "bad_words_ids", word));
      if (rules.bad_words_ids.back().empty()) fields.refuse("bad_words_ids", word, "a list of token ids");
    }
  }
  return rules;
}

void read_drawing(const JsonFields& fields, SamplerOptions& options) {
  options.temperature = sampling_number(fields, temperature_range, 1);
  options.top_k = static_cast<int>(fields.integer_or("top_k", 50, 0, most_sampled_candidates));
  options.top_p = sampling_number(fields, top_p_range, 1);
  options.min_p = sampling_number(fields, min_p_range, 0);
  options.typical_p = sampling_number(fields, {"typical_p", 1e-9, 1}, 1);
  options.epsilon_cutoff = sampling_number(fields, {"epsilon_cutoff", 0, 1 - 1e-6}, 0);
  options.eta_cutoff = sampling_number(fields, {"eta_cutoff", 0, 1 - 1e-6}, 0);
}

void refuse_unsupported(const JsonFields& fields) {
  for (const Unsupported& each : unsupported_fields()) {
    const json* value = fields.find(each.name);
    if (!value || *value == each.neutral || (value->is_structured() && value->empty())) continue;
    fields.refuse(each.name, *value,
                  fmt::format("{}, for it is not supported; --no-model-sampling passes the recommendations over",
                              each.neutral.is_null() ? "absent" : each.neutral.dump()));
  }
}

std::vector<std::string> notes_on_unknown(const json& object, const std::string& where) {
  std::string names;
  for (const auto& [name, value] : object.items()) {
    const auto same = [&](const Unsupported& each) { return each.name == name; };
    if (value.is_null() || std::ranges::any_of(unsupported_fields(), same)) continue;
    if (std::ranges::find(heeded_or_meaningless, name) == heeded_or_meaningless.end()) {
      names += (names.empty() ? "" : ", ") + printable(name);
    }
  }
  if (names.empty()) return {};
  return {fmt::format("{}: not known and without effect: {}", where, names)};
}

// config.json where there is no generation_config.json: models of before it was had their recommendations there.
SamplingDefaults of_model_config(const std::filesystem::path& file) {
  SamplingDefaults defaults;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return defaults;
  const json object = read_json_file(file);
  const json* text = object.is_object() && object.contains("text_config") ? &object["text_config"] : &object;
  const JsonFields fields(text->is_object() ? *text : object, file.string());
  refuse_unsupported(fields);
  defaults.options.rules = read_rules(fields);
  const bool samples = fields.boolean_or("do_sample", false);
  if (samples) read_drawing(fields, defaults.options);
  defaults.found = samples || defaults.options.rules.any();
  return defaults;
}

}  // namespace

SamplingDefaults sampling_defaults_of_folder(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return of_model_config(directory / "config.json");
  SamplingDefaults defaults;
  const json object = read_json_file(file);
  const JsonFields fields(object, file.string());
  defaults.found = true;
  refuse_unsupported(fields);
  defaults.options.rules = read_rules(fields);
  if (fields.boolean_or("do_sample", false)) read_drawing(fields, defaults.options);
  defaults.notes = notes_on_unknown(object, file.string());
  return defaults;
}

}  // namespace hayloft::runtime
