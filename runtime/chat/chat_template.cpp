#include "runtime/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/chat/jinja/template.h"
#include "runtime/tokenizer/declared.h"

namespace hayloft::runtime {
namespace {

using nlohmann::ordered_json;

struct Known {
  std::string_view name;
  std::string_view source;
};
constexpr Known known[] = {
    {"llama-2",
     "{% for message in messages %}{% if message.role == 'assistant' %} {{ message.content }} </s>"
     "{% else %}[INST] {{ message.content }} [/INST]{% endif %}{% endfor %}"},
    {"llama-3",
     "<|begin_of_text|>{% for message in messages %}"
     "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"chatml",
     "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{{ '\n' }}"
     "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
};

// Messages tell their reasoning under several names; templates read one of the first two.
constexpr std::array<const char*, 3> reasoning_names = {"reasoning_content", "thinking", "reasoning"};

void name_reasoning(ordered_json& messages) {
  for (ordered_json& message : messages) {
    if (!message.is_object()) continue;
    for (const char* name : reasoning_names) {
      const auto found = message.find(name);
      if (found == message.end() || found->is_null()) continue;
      const ordered_json reasoning = *found;
      message["reasoning_content"] = reasoning;
      if (!message.contains("thinking")) message["thinking"] = reasoning;
      break;
    }
  }
}

// Not nested beyond measure, because values are copied recursively.
ordered_json parse(std::string_view json, const char* what) {
  constexpr int most_depth = 200;
  const auto check = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    if (depth > most_depth) fail("{} lie in one another more than {} deep", what, most_depth);
    return true;
  };
  try {
    return ordered_json::parse(json, check);
  } catch (const ordered_json::exception&) {
    fail("{} are no valid JSON", what);
  }
}

// The files that hold one template each, by the template's name.
std::map<std::string, std::filesystem::path> template_files(const std::filesystem::path& directory) {
  std::map<std::string, std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "additional_chat_templates", error)) {
    if (entry.path().extension() == ".jinja") found[entry.path().stem().string()] = entry.path();
  }
  const auto single = directory / "chat_template.jinja";
  if (std::filesystem::exists(single, error)) found["default"] = single;
  return found;
}

}  // namespace

struct ChatTemplate::Source {
  std::map<std::string, jinja::Template> templates;  // by name, "default" for a single one
  std::vector<std::pair<std::string, std::string>> variables;

  const jinja::Template& choose(bool tools) const {
    auto found = tools ? templates.find("tool_use") : templates.end();
    if (found == templates.end()) found = templates.find("default");
    if (found == templates.end()) fail("the model has chat templates by name, none of them 'default'");
    return found->second;
  }
};

std::optional<ChatTemplate> ChatTemplate::of_model(const std::filesystem::path& directory) {
  auto source = std::make_shared<Source>();
  const auto config = directory / "tokenizer_config.json";
  const auto add = [&](const std::string& name, const std::string& text, const std::string& where) {
    source->templates.insert_or_assign(name, jinja::Template(text, where));
  };
  std::error_code error;
  for (const auto& [name, file] : template_files(directory)) add(name, read_small_file(file), file.string());
  if (source->templates.empty() && std::filesystem::exists(config, error)) {
    const nlohmann::json json = read_json_file(config);
    const JsonFields fields(json, config.string());
    const nlohmann::json* written = fields.find("chat_template");
    const std::string where = config.string() + ": chat_template";
    if (written && written->is_array()) {
      for (const nlohmann::json& each : *written) {
        const JsonFields one(each, where);
        add(one.text("name"), one.text("template"), fmt::format("{} '{}'", where, printable(one.text("name"))));
      }
    } else if (written) {
      add("default", fields.text("chat_template"), where);
    }
  }
  if (source->templates.empty()) return std::nullopt;
  source->variables = special_tokens(directory);
  ChatTemplate made;
  made.source_ = std::move(source);
  return made;
}

ChatTemplate ChatTemplate::from_source(std::string_view text, const std::string& name,
                                       std::vector<std::pair<std::string, std::string>> variables) {
  auto source = std::make_shared<Source>();
  source->variables = std::move(variables);
  source->templates.emplace("default", jinja::Template(text, name));
  ChatTemplate made;
  made.source_ = std::move(source);
  return made;
}

ChatTemplate ChatTemplate::named(const std::string& text) {
  if (text == "none") return {};
  for (const Known& each : known) {
    if (text == each.name) return from_source(each.source, "--chat-template " + text);
  }
  constexpr std::string_view place = "{task}";
  std::string written = text;
  for (std::size_t at = 0; (at = written.find("\\n", at)) != std::string::npos;) written.replace(at, 2, "\n");
  const std::size_t at = written.find(place);
  if (at == std::string::npos) {
    fail("--chat-template {}: must be model, none, llama-2, llama-3, chatml, or a text with {{task}} in it", text);
  }
  auto source = std::make_shared<Source>();
  source->templates.emplace(
      "default", jinja::Template("{{ before }}{{ messages[-1].content }}{{ after }}", "--chat-template " + text));
  source->variables = {{"before", written.substr(0, at)}, {"after", written.substr(at + place.size())}};
  ChatTemplate made;
  made.source_ = std::move(source);
  return made;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  ordered_json array = ordered_json::array();
  for (const ChatMessage& message : messages) array.push_back({{"role", message.role}, {"content", message.content}});
  // Replacement characters where a text is not UTF-8, as the tokenizer would read it.
  return render_json(array.dump(-1, ' ', false, ordered_json::error_handler_t::replace), options);
}

std::string ChatTemplate::render_json(std::string_view messages, const ChatOptions& options) const {
  ordered_json variables = {{"messages", parse(messages, "the messages of a conversation")}};
  ordered_json& array = variables["messages"];
  if (!array.is_array()) fail("the messages of a conversation are no list");
  if (!source_) {
    const bool single = array.size() == 1 && array[0].is_object() && array[0].contains("content");
    if (!single || !array[0]["content"].is_string())
      fail("without a chat template a conversation is one message of text");
    return array[0]["content"].get<std::string>();
  }
  name_reasoning(array);
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = options.add_generation_prompt;
  for (const auto& [name, value] : source_->variables) variables[name] = value;
  if (!options.variables.empty()) {
    const ordered_json more = parse(options.variables, "the variables of a chat template");
    if (!more.is_object()) fail("the variables of a chat template are no object");
    for (const auto& [name, value] : more.items()) variables[name] = value;
  }
  return source_->choose(!variables["tools"].is_null()).render(variables, options.now);
}

std::string ChatTemplate::text(const std::string& prompt) const {
  if (!source_) return prompt;
  const ChatMessage message{"user", prompt};
  return render({&message, 1});
}

}  // namespace hayloft::runtime
