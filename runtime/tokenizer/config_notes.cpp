#include "runtime/tokenizer/config_notes.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/tokenizer/declared.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;

// Read by declared.cpp and by chat templates, or without a say in what ids a text has: classes and versions, lengths,
// padding, what the slow tokenizers went by.
constexpr std::array<std::string_view, 47> known_in_tokenizer_config = {
    "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "chat_template",
    "model_specific_special_tokens", "split_special_tokens", "add_bos_token", "add_eos_token", "add_prefix_space",
    //
    "tokenizer_class", "processor_class", "auto_map", "transformers_version", "name_or_path", "special_tokens_map_file",
    "tokenizer_file", "vocab_file", "merges_file", "init_inputs", "backend", "is_local", "local_files_only",
    "model_max_length", "max_length", "stride", "padding", "padding_side", "pad_to_multiple_of", "pad_token_type_id",
    "truncation", "truncation_side", "truncation_strategy", "model_input_names", "return_token_type_ids", "device_map",
    "clean_up_tokenization_spaces", "spaces_between_special_tokens", "use_default_system_prompt", "legacy", "from_slow",
    "sp_model_kwargs", "errors", "trim_offsets", "response_schema", "add_dummy_prefix_space", "fix_mistral_regex",
    "vocab_size"};

// One that chat templates know as a variable: NAME_token, or a list of such.
bool names_tokens(const std::string& name) {
  return name.ends_with("_token") || name.ends_with("_tokens") || name.ends_with("_token_id");
}

class ConfigNotes {
 public:
  ConfigNotes(const std::filesystem::path& directory, const Tokenizer& tokenizer, const json& object)
      : tokenizer_(tokenizer),
        file_((directory / "tokenizer_config.json").string()),
        fields_(object, file_),
        specials_(special_tokens(directory)) {}

  std::vector<std::string> take() {
    around("add_bos_token", "bos_token", "before", [](const auto& ids) { return ids.front(); });
    around("add_eos_token", "eos_token", "behind", [](const auto& ids) { return ids.back(); });
    prefix_space();
    unknown();
    return std::move(notes_);
  }

 private:
  template <class End>
  void around(const char* field, const char* token, const char* where, End end) {
    const auto* flag = fields_.find(field);
    const auto named = std::ranges::find(specials_, token, &std::pair<std::string, std::string>::first);
    if (!flag || !flag->is_boolean() || named == specials_.end()) return;
    const std::vector<std::int32_t> ids = tokenizer_.encode("a");
    const bool puts = !ids.empty() && end(ids) == tokenizer_.token(named->second);
    if (puts == flag->get<bool>()) return;
    notes_.push_back(fmt::format("{}: {} is {}, but tokenizer.json puts {} {} {} a text, which holds", file_, field,
                                 flag->dump(), puts ? "a" : "no", printable(named->second), where));
  }

  void prefix_space() {
    const auto* flag = fields_.find("add_prefix_space");
    const std::vector<std::int32_t> ids = tokenizer_.encode("a", false);
    if (!flag || !flag->is_boolean() || ids.size() != 1) return;
    const bool bare = ids.front() == tokenizer_.token("a");
    if (bare != flag->get<bool>()) return;
    notes_.push_back(
        fmt::format("{}: add_prefix_space is {}, but tokenizer.json puts {} space before a text, which "
                    "holds",
                    file_, flag->dump(), bare ? "no" : "a"));
  }

  void unknown() {
    std::string names;
    for (const std::string& name : fields_.unread()) {
      if (names_tokens(name) || std::ranges::find(known_in_tokenizer_config, name) != known_in_tokenizer_config.end()) {
        continue;
      }
      names += (names.empty() ? "" : ", ") + printable(name);
    }
    if (!names.empty()) notes_.push_back(fmt::format("{}: not known and without effect: {}", file_, names));
  }

  const Tokenizer& tokenizer_;
  std::string file_;
  JsonFields fields_;
  std::vector<std::pair<std::string, std::string>> specials_;
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<std::string> tokenizer_config_notes(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  const std::filesystem::path file = directory / "tokenizer_config.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return {};
  const json object = read_json_file(file);
  return ConfigNotes(directory, tokenizer, object).take();
}

}  // namespace hayloft::runtime
