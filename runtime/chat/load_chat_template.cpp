#include "runtime/chat/load_chat_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <system_error>

#include "offload/json_file.h"
#include "runtime/checkpoint/gguf/file.h"
#include "runtime/checkpoint/gguf/tokenizer.h"
#include "runtime/tokenizer/declared.h"

namespace hayloft::runtime {
namespace {

// Files that hold one template each.
std::vector<NamedTemplate> template_files(const std::filesystem::path& directory) {
  std::vector<NamedTemplate> found;
  const auto add = [&](const std::string& name, const std::filesystem::path& file) {
    found.push_back({name, read_small_file(file), file.string()});
  };
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "additional_chat_templates", error)) {
    if (entry.path().extension() == ".jinja") add(entry.path().stem().string(), entry.path());
  }
  const auto single = directory / "chat_template.jinja";
  if (std::filesystem::exists(single, error)) add("default", single);
  return found;
}

// The field chat_template of DIR/tokenizer_config.json: a text, or several by name, as a list or as an object.
std::vector<NamedTemplate> configured_templates(const std::filesystem::path& directory) {
  const auto config = directory / "tokenizer_config.json";
  std::error_code error;
  if (!std::filesystem::exists(config, error)) return {};
  const nlohmann::json json = read_json_file(config);
  const JsonFields fields(json, config.string());
  const nlohmann::json* written = fields.find("chat_template");
  if (!written) return {};
  const std::string where = config.string() + ": chat_template";
  std::vector<NamedTemplate> found;
  const auto add = [&](const std::string& name, const std::string& source) {
    found.push_back({name, source, fmt::format("{} '{}'", where, printable(name))});
  };
  if (written->is_array()) {
    for (const nlohmann::json& each : *written) {
      const JsonFields one(each, where);
      add(one.text("name"), one.text("template"));
    }
  } else if (written->is_object()) {
    const JsonFields named(*written, where);
    for (const auto& [name, source] : written->items()) add(name, named.text(name.c_str()));
  } else {
    found.push_back({"default", fields.text("chat_template"), where});
  }
  return found;
}

std::optional<ChatTemplate> folder_template(const std::filesystem::path& directory) {
  std::vector<NamedTemplate> found = template_files(directory);
  if (found.empty()) found = configured_templates(directory);
  if (found.empty()) return std::nullopt;
  return ChatTemplate::from_sources(found, special_tokens(directory));
}

std::optional<ChatTemplate> gguf_template(const std::filesystem::path& path) {
  const gguf::File file(path);
  const std::string key = "tokenizer.chat_template";
  std::vector<NamedTemplate> found;
  for (const auto& [name, value] : file.metadata().values()) {
    if (name != key && !name.starts_with(key + ".")) continue;
    found.push_back({name == key ? "default" : name.substr(key.size() + 1), std::string(file.metadata().text(name)),
                     fmt::format("{}: {}", path.string(), printable(name))});
  }
  if (found.empty()) return std::nullopt;
  return ChatTemplate::from_sources(found, gguf::special_tokens(file.metadata()));
}

}  // namespace

std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& model) {
  return gguf::is_file(model) ? gguf_template(model) : folder_template(model);
}

}  // namespace hayloft::runtime
