// general.sampling.* of a GGUF file, as llama.cpp takes them over.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <variant>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/chat/sampling_defaults_files.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime {
namespace {

constexpr std::string_view sampling_prefix = "general.sampling.";
constexpr std::int64_t usual_repetition_window = 64;  // of llama.cpp

// Samplers that are off at 0, and not here.
constexpr std::array<std::string_view, 2> samplers_off_at_zero = {"xtc_probability", "mirostat"};
// Names that say how such a sampler works; and the order of samplers, which is one here.
constexpr std::array<std::string_view, 4> sampler_details = {"xtc_threshold", "mirostat_tau", "mirostat_eta",
                                                             "sequence"};

std::optional<double> as_number(const gguf::Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*number);
  return std::nullopt;
}

class GgufSampling {
 public:
  explicit GgufSampling(const gguf::Metadata& metadata) : metadata_(metadata) {}

  SamplingDefaults read() {
    SamplerOptions& options = defaults_.options;
    options.temperature = number("temp", temperature_range, 1);
    options.top_p = number("top_p", top_p_range, 1);
    options.min_p = number("min_p", min_p_range, 0);
    options.top_k = static_cast<int>(integer("top_k", 0, 0, most_sampled_candidates));
    LogitRules& rules = options.rules;
    rules.repetition_penalty = number("penalty_repeat", repetition_range, 1);
    rules.repetition_window = integer("penalty_last_n", usual_repetition_window, -1, std::int64_t{1} << 40);
    if (rules.repetition_window == 0) rules.repetition_penalty = 1;  // of no token
    if (rules.repetition_window < 0) rules.repetition_window = 0;    // of all
    read_suppressed(rules);
    look_at_the_rest();
    if (!defaults_.found) options = {};
    return defaults_;
  }

 private:
  static std::string key(std::string_view name) { return std::string(sampling_prefix).append(name); }

  float number(const char* name, const SamplingRange& range, float absent) {
    const gguf::Value* written = metadata_.find(key(name));
    if (!written) return absent;
    defaults_.found = true;
    const std::optional<double> found = as_number(*written);
    if (!found || !range.holds(*found)) metadata_.refuse(key(name), range.text());
    return static_cast<float>(*found);
  }

  std::int64_t integer(const char* name, std::int64_t absent, std::int64_t least, std::int64_t most) {
    defaults_.found |= metadata_.contains(key(name));
    return metadata_.integer_or(key(name), absent, least, most);
  }

  // With the vocabulary, but of no say in how text is cut. Alone they leave the rest as it is: greedy.
  void read_suppressed(LogitRules& rules) {
    constexpr const char* listed = "tokenizer.ggml.suppress_tokens";
    if (!metadata_.contains(listed)) return;
    for (const std::int64_t token : metadata_.integers(listed)) {
      if (token < 0 || token >= most_sampled_candidates) metadata_.refuse(listed, "a list of token ids");
      rules.suppress_tokens.push_back(static_cast<std::int32_t>(token));
    }
    if (!defaults_.found) {
      LogitRules kept = std::move(rules);
      defaults_.options = {};
      defaults_.options.rules = std::move(kept);
      defaults_.found = true;
    }
  }

  void look_at_the_rest() {
    constexpr std::array<std::string_view, 6> read = {"temp",  "top_p",          "min_p",
                                                      "top_k", "penalty_repeat", "penalty_last_n"};
    const auto among = [](const auto& names, std::string_view name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const auto& [whole, value] : metadata_.values()) {
      std::string_view name = whole;
      if (!name.starts_with(sampling_prefix)) continue;
      name.remove_prefix(sampling_prefix.size());
      if (among(read, name)) continue;
      if (among(samplers_off_at_zero, name)) {
        if (as_number(value) != 0.0)
          metadata_.refuse(whole, "0: that sampler is not here; --no-model-sampling passes it over");
      } else if (name == "sequence") {
        defaults_.notes.push_back(
            fmt::format("{}: {} has no effect: the order of samplers is one here", metadata_.file(), whole));
      } else if (!among(sampler_details, name)) {
        defaults_.notes.push_back(
            fmt::format("{}: {} is not known and has no effect", metadata_.file(), printable(whole)));
      }
    }
  }

  const gguf::Metadata& metadata_;
  SamplingDefaults defaults_;
};

}  // namespace

SamplingDefaults sampling_defaults_of_gguf(const std::filesystem::path& path) {
  const gguf::File file(path);
  return GgufSampling(file.metadata()).read();
}

}  // namespace hayloft::runtime
