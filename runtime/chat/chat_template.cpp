#include "runtime/chat/chat_template.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "offload/error.h"
#include "offload/text/ordered_json.h"
#include "runtime/chat/jinja/template.h"
#include "runtime/chat/message_forms.h"

namespace hayloft::runtime {
namespace {

using nlohmann::ordered_json;

struct Known {
  std::string_view name;
  std::string_view source;
};
constexpr Known known[] = {
    {"llama-2",
     "{% for message in messages %}{% if message.role == 'assistant' %} {{ message.content }} </s><s>"
     "{% elif message.role == 'user' %}[INST] {% if not loop.first and loop.previtem.role == 'system' %}"
     "<<SYS>>\n{{ loop.previtem.content }}\n<</SYS>>\n\n{% endif %}{{ message.content }} [/INST]"
     "{% elif message.role != 'system' or loop.last or loop.nextitem.role != 'user' %}"
     "{{ raise_exception('there is no place for this message of the role ' ~ message.role) }}{% endif %}{% endfor %}"},
    {"llama-3",
     "<|begin_of_text|>{% for message in messages %}"
     "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"chatml",
     "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{{ '\n' }}"
     "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
};

ordered_json parse(std::string_view json, const char* what) {
  try {
    return parse_ordered_json(json, LongIntegers::kept);
  } catch (const Error& error) {
    fail("{}: {}", what, error.what());
  }
}

}  // namespace

struct ChatTemplate::Source {
  std::map<std::string, jinja::Template> templates;  // by name, "default" for a single one
  std::vector<std::pair<std::string, std::string>> variables;
  std::map<std::string, std::string> texts;  // likewise

  const jinja::Template& choose(bool tools) const {
    auto found = tools ? templates.find("tool_use") : templates.end();
    if (found == templates.end()) found = templates.find("default");
    if (found == templates.end()) fail("the model has chat templates by name, none of them 'default'");
    return found->second;
  }

  // The text of the form that the template was written for, the first of equals. Throws what the first form meets where
  // the template refuses all.
  std::string render(const MessageForms& forms, ordered_json& given, std::time_t now) const {
    const jinja::Template& chosen = choose(!given["tools"].is_null());
    std::string best;
    std::size_t least = std::numeric_limits<std::size_t>::max();
    std::optional<Error> refusal;
    for (const ordered_json& form : forms.forms()) {
      given["messages"] = form;
      try {
        std::string text = chosen.render(given, now);
        const std::size_t objections = forms.objections(text);
        if (objections < least) {
          least = objections;
          best = std::move(text);
        }
      } catch (const Error& error) {
        if (!refusal) refusal = error;
      }
      if (least == 0) break;
    }
    if (least == std::numeric_limits<std::size_t>::max()) throw *refusal;
    return best;
  }
};

ChatTemplate ChatTemplate::from_sources(const std::vector<NamedTemplate>& sources,
                                        std::vector<std::pair<std::string, std::string>> variables) {
  auto source = std::make_shared<Source>();
  source->variables = std::move(variables);
  for (const NamedTemplate& each : sources) {
    source->texts.insert_or_assign(each.name, each.source);
    source->templates.insert_or_assign(each.name, jinja::Template(each.source, each.where));
  }
  ChatTemplate made;
  made.source_ = std::move(source);
  return made;
}

ChatTemplate ChatTemplate::from_source(std::string_view text, const std::string& name,
                                       std::vector<std::pair<std::string, std::string>> variables) {
  return from_sources({{"default", std::string(text), name}}, std::move(variables));
}

ChatTemplate ChatTemplate::named(const std::string& text) {
  constexpr const char* place = "{task}";
  const std::string name = "--chat-template " + text;
  if (text == "none") return from_text(place, place, name);
  for (const Known& each : known) {
    if (text == each.name) return from_source(each.source, name);
  }
  if (text.find(place) == std::string::npos) {
    fail("{}: must be model, none, llama-2, llama-3, chatml, or a text with {{task}} in it", name);
  }
  return from_text(text, place, name);
}

ChatTemplate ChatTemplate::from_text(std::string text, const std::string& place, const std::string& name) {
  for (std::size_t at = 0; (at = text.find("\\n", at)) != std::string::npos;) text.replace(at, 2, "\n");
  return from_source(
      "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}"
      "{% elif message.role == 'user' %}{{ text | replace(place, message.content) }}"
      "{% else %}{{ raise_exception('there is no place for a message of the role ' ~ message.role) }}{% endif %}"
      "{% endfor %}",
      name, {{"text", std::move(text)}, {"place", place}});
}

std::string messages_json(std::span<const ChatMessage> messages) {
  ordered_json array = ordered_json::array();
  for (const ChatMessage& message : messages) array.push_back({{"role", message.role}, {"content", message.content}});
  return array.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  return render_json(messages_json(messages), options);
}

std::string ChatTemplate::render_json(std::string_view messages, const ChatOptions& options) const {
  const ordered_json array = parse(messages, "the messages of a conversation");
  if (!array.is_array()) fail("the messages of a conversation are no list");
  const MessageForms forms(array);
  if (!source_) {
    const ordered_json& simplest = forms.forms().back();
    const bool single = simplest.size() == 1 && simplest[0].is_object() && simplest[0].contains("content");
    if (!single || !simplest[0]["content"].is_string()) {
      fail("without a chat template a conversation is one message of text");
    }
    return simplest[0]["content"].get<std::string>();
  }
  ordered_json variables = {{"messages", nullptr},
                            {"tools", nullptr},
                            {"documents", nullptr},
                            {"add_generation_prompt", options.add_generation_prompt}};
  for (const auto& [name, value] : source_->variables) variables[name] = value;
  if (!options.variables.empty()) {
    const ordered_json more = parse(options.variables, "the variables of a chat template");
    if (!more.is_object()) fail("the variables of a chat template are no object");
    for (const auto& [name, value] : more.items()) variables[name] = value;
  }
  return source_->render(forms, variables, options.now);
}

std::string ChatTemplate::text(const std::string& prompt) const {
  if (!source_) return prompt;
  const ChatMessage message{"user", prompt};
  return render({&message, 1});
}

bool ChatTemplate::names(std::string_view word) const {
  return source_ && std::any_of(source_->templates.begin(), source_->templates.end(),
                                [&](const auto& each) { return each.second.names(word); });
}

bool ChatTemplate::mentions(std::string_view text) const {
  return source_ && std::ranges::any_of(source_->texts,
                                        [&](const auto& each) { return each.second.find(text) != std::string::npos; });
}

std::string ChatTemplate::sources() const {
  std::string all;
  const auto add = [&](const auto& pairs) {
    for (const auto& [name, text] : pairs) all += fmt::format("{}\n{} bytes\n{}\n", name, text.size(), text);
  };
  if (!source_) return all;
  add(source_->texts);
  add(source_->variables);
  return all;
}

// A template that names tools may still leave them out, so it is tried, with a system message too: some write tools
// beside one alone. Where it refuses the trial, it has to be believed.
bool ChatTemplate::takes_tools() const {
  if (!names("tools")) return false;
  const char* const plain = R"([{"role": "user", "content": "?"}])";
  const char* const with_system = R"([{"role": "system", "content": "!"}, {"role": "user", "content": "?"}])";
  ChatOptions bare, given;
  given.now = bare.now;
  given.variables = R"({"tools": [{"type": "function", "function": {"name": "find_needle", "description": "Finds.",
    "parameters": {"type": "object", "properties": {"bale": {"type": "integer", "description": "Which."}},
    "required": ["bale"]}}}]})";
  for (const char* messages : {plain, with_system}) {
    try {
      if (render_json(messages, given) != render_json(messages, bare)) return true;
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}

}  // namespace hayloft::runtime
