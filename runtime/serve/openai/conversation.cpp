#include "runtime/serve/openai/conversation.h"

#include <fmt/format.h>

#include <set>

#include "runtime/chat/special_guard.h"
#include "runtime/serve/changing_head.h"
#include "runtime/serve/openai/fit_messages.h"
#include "runtime/serve/openai/messages.h"

namespace hayloft::runtime::serve::openai {
namespace {

// The first line of a system prompt, where it is known to change each time.
bool drop_head(Json& messages) {
  if (messages.empty() || messages.front()["role"] == "user" || messages.front()["role"] == "assistant") return false;
  Json* content = &messages.front()["content"];
  if (content->is_array() && !content->empty()) content = &content->front()["text"];
  return content->is_string() && drop_changing_head(content->get_ref<std::string&>());
}

// The material that is put to the template, which is asked again without a part of it: what leaves the text as it was
// has reached nobody.
struct Material {
  Json messages;
  Json variables = Json::object();
};

class Writer {
 public:
  Writer(const ChatTemplate& chat_template, bool generation_prompt) : template_(chat_template) {
    options_.add_generation_prompt = generation_prompt;
  }

  const ChatTemplate& chat_template() const { return template_; }

  std::string write(const Material& material) const { return write(material, options_.add_generation_prompt); }

  // Returns the end of the text that begins the answer: what is not there where none is asked for.
  std::string opening(const Material& material, const std::string& text) const {
    if (!options_.add_generation_prompt) return {};
    try {
      const std::string said = write(material, false);
      return text.starts_with(said) ? text.substr(said.size()) : std::string();
    } catch (const Error&) {  // it is never without
      return {};
    }
  }

  bool writes_otherwise(const Material& material, const std::string& text) const {
    try {
      return write(material) != text;
    } catch (const Error&) {  // it was missed
      return true;
    }
  }

 private:
  std::string write(const Material& material, bool generation_prompt) const {
    ChatOptions options = options_;  // written at the same moment each time
    options.add_generation_prompt = generation_prompt;
    options.variables = dumped(material.variables);
    return template_.render_json(dumped(material.messages), options);
  }

  const ChatTemplate& template_;
  ChatOptions options_;
};

constexpr std::size_t kMostDoubtful = 8;

// The roles whose messages may be left out without a word: those that the template does not name.
std::set<std::string> doubtful_roles(const Json& messages, const ChatTemplate& chat_template) {
  std::set<std::string> roles;
  for (const Json& message : messages) {
    const std::string& role = message["role"].get_ref<const std::string&>();
    if (role != "user" && role != "assistant" && !chat_template.names(role)) roles.insert(role);
    if (roles.size() > kMostDoubtful) refuse("messages", "too many roles that the model's chat template does not name");
  }
  return roles;
}

void require_role(const std::string& role, const Material& material, const Writer& writer, const std::string& text) {
  Material other = material;
  for (Json& message : other.messages) {
    if (message["role"] == role) message["content"] = "something else";
  }
  if (writer.writes_otherwise(other, text)) return;
  refuse("messages", fmt::format("the model's chat template leaves out messages of role \"{}\"", shown_name(role)));
}

// Fields of messages that some templates leave out by their makers' will: noted, not refused.
bool leaves_out(const char* field, const Material& material, const Writer& writer, const std::string& text) {
  Material other = material;
  bool there = false;
  for (Json& message : other.messages) there = message.erase(field) > 0 || there;
  return there && !writer.writes_otherwise(other, text);
}

// The name of a participant; that of the tool whose result it is stands in the call as well.
bool leaves_out_names(const Material& material, const Writer& writer, const std::string& text) {
  Material other = material;
  for (Json& message : other.messages) {
    if (message["role"] == "tool" || message["role"] == "function") message.erase("name");
  }
  return leaves_out("name", other, writer, text);
}

// Tools, and what they have beyond the API's fields.
void require_tools(const std::vector<std::string>& others, const Material& material, const Writer& writer,
                   const std::string& text) {
  Material without = material;
  without.variables.erase("tools");
  if (!writer.writes_otherwise(without, text)) {
    refuse("tools",
           "the model's chat template takes no notice of them: the model would not see them; leave them out, or "
           "describe them in a message");
  }
  for (const std::string& name : others) {
    Material other = material;
    for (Json& tool : other.variables["tools"]) {
      tool.erase(name);
      tool["function"].erase(name);
    }
    if (writer.writes_otherwise(other, text)) continue;
    refuse("tools",
           fmt::format("the model's chat template takes no notice of \"{}\" in them: leave it out", shown_name(name)));
  }
}

// Checks the variables beside messages and tools.
void require_names(const Json& variables, const ChatTemplate& chat_template) {
  for (const auto& [name, value] : variables.items()) {
    if (value.is_null() || chat_template.names(name)) continue;
    refuse(shown_name(name), "the model's chat template takes no notice of it: leave it out");
  }
}

}  // namespace

Conversation write_conversation(const Draft& draft) {
  if (draft.served.chat_template == nullptr) {
    refuse("messages", "the model has no chat template; use /v1/completions");
  }
  if (draft.messages == nullptr || draft.messages->empty()) refuse("messages", "a list of messages is needed");
  const Writer writer(*draft.served.chat_template, draft.generation_prompt);
  require_names(draft.variables, writer.chat_template());
  Material material{checked_messages(*draft.messages, writer.chat_template()), draft.variables};
  const bool dropped = draft.served.drops_changing_head && drop_head(material.messages);
  const std::vector<std::string> others = draft.tools ? check_tools(*draft.tools) : std::vector<std::string>();
  const bool tools = draft.tools != nullptr && !draft.tools->empty() && draft.tools_wanted;
  if (tools) material.variables["tools"] = *draft.tools;
  Conversation written;
  written.guard = guard_special_tokens(draft.served.tokenizer, {&material.messages, &material.variables});
  try {
    FittedMessages fitted =
        fit_messages(material.messages, material.variables, [&](const Json& messages, const Json& variables) {
          return writer.write(Material{messages, variables});
        });
    material = {std::move(fitted.messages), std::move(fitted.variables)};
    written.text = std::move(fitted.text);
    written.notes = std::move(fitted.notes);
  } catch (const BadRequest&) {
    throw;
  } catch (const Error& error) {
    refuse("messages", error.what());
  }
  if (!written.guard.empty()) {
    written.notes.push_back(
        "messages: the text of a special token in them is read as words: only the chat template writes special tokens");
  }
  written.opening = writer.opening(material, written.text);
  if (tools) {
    require_tools(others, material, writer, written.text);
    std::vector<OfferedTool> offered;
    for (const Json& tool : *draft.tools) {
      const Json& function = tool["function"];
      const auto parameters = function.find("parameters");
      const bool said = parameters != function.end() && !parameters->is_null();
      offered.push_back({function["name"].get<std::string>(), said ? *parameters : Json::object()});
    }
    written.form = answer_form(writer.chat_template(), std::move(offered), written.text);
    if (!written.form.calls()) {
      written.notes.push_back(
          "tools: the model has been told of them; how it calls them its chat template does not say in a way that is "
          "known here, so a call comes back as text in content");
    }
  } else {
    written.form = answer_form(writer.chat_template(), {}, written.text);
  }
  if (dropped) {
    written.notes.push_back(
        "messages: the billing header at the head of the system prompt, which changes each time, was left out; see "
        "--keep-billing-header");
  }
  if (leaves_out("tool_calls", material, writer, written.text)) {
    written.notes.push_back("messages: the model's chat template leaves out tool_calls: the model does not see them");
  }
  if (leaves_out_names(material, writer, written.text)) {
    written.notes.push_back("messages: the model's chat template leaves out name: the model does not see it");
  }
  for (const std::string& role : doubtful_roles(material.messages, writer.chat_template())) {
    require_role(role, material, writer, written.text);
  }
  return written;
}

}  // namespace hayloft::runtime::serve::openai
