#include "runtime/chat/sampling_defaults.h"

#include <system_error>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime {
namespace {

constexpr std::int64_t most_candidates = 1 << 30;

// A field and the numbers that it may have.
struct Range {
  const char* name;
  double least;
  double most;

  bool holds(double value) const { return value >= least && value <= most; }
  std::string text() const { return fmt::format("a number from {} to {}", least, most); }
};
constexpr Range temperature = {"temperature", 0, 1e9};
constexpr Range top_p = {"top_p", 1e-9, 1};
constexpr Range min_p = {"min_p", 0, 1};

float number_or(const JsonFields& fields, const Range& range, float absent) {
  const nlohmann::json* value = fields.find(range.name);
  if (!value) return absent;
  if (!value->is_number() || !range.holds(value->get<double>())) fields.refuse(range.name, *value, range.text());
  return value->get<float>();
}

std::optional<SamplerOptions> of_folder(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  const nlohmann::json json = read_json_file(file);
  const JsonFields fields(json, file.string());
  SamplerOptions options;
  if (!fields.boolean_or("do_sample", false)) return options;
  options.temperature = number_or(fields, temperature, 1);
  options.top_k = static_cast<int>(fields.integer_or("top_k", 50, 0, most_candidates));
  options.top_p = number_or(fields, top_p, 1);
  options.min_p = number_or(fields, min_p, 0);
  return options;
}

std::optional<SamplerOptions> of_file(const std::filesystem::path& path) {
  const gguf::File file(path);
  const gguf::Metadata& metadata = file.metadata();
  const auto key = [](const char* name) { return std::string("general.sampling.") + name; };
  SamplerOptions options;
  bool found = false;
  const auto read = [&](const char* name, const Range& range, float absent) {
    const gguf::Value* written = metadata.find(key(name));
    if (!written) return absent;
    found = true;
    const auto* number = std::get_if<double>(written);
    if (!number || !range.holds(*number)) metadata.refuse(key(name), range.text());
    return static_cast<float>(*number);
  };
  options.temperature = read("temp", temperature, 1);
  options.top_p = read("top_p", top_p, 1);
  options.min_p = read("min_p", min_p, 0);
  found |= metadata.contains(key("top_k"));
  options.top_k = static_cast<int>(metadata.integer_or(key("top_k"), 0, 0, most_candidates));
  if (!found) return std::nullopt;
  return options;
}

}  // namespace

std::optional<SamplerOptions> sampling_defaults(const std::filesystem::path& model) {
  return gguf::is_file(model) ? of_file(model) : of_folder(model);
}

}  // namespace hayloft::runtime
