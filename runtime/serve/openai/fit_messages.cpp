#include "runtime/serve/openai/fit_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace hayloft::runtime::serve::openai {
namespace {

bool calls_tools(const Json& message) {
  return message["role"] == "assistant" && message.contains("tool_calls") && message["tool_calls"].is_array() &&
         !message["tool_calls"].empty();
}

// A content of text, or of parts that are texts.
std::string text_of(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) return text;
  for (const Json& part : content) {
    if (part.is_object() && part.contains("text") && part["text"].is_string()) text += part["text"].get<std::string>();
  }
  return text;
}

bool describe_tools(Json& variables) {
  bool changed = false;
  if (!variables.contains("tools")) return changed;
  for (Json& tool : variables["tools"]) {
    Json& function = tool["function"];
    if (function.contains("description") && !function["description"].is_null()) continue;
    function["description"] = "";
    changed = true;
  }
  return changed;
}

bool join_reasoning(Json& messages) {
  bool changed = false;
  for (Json& message : messages) {
    const std::string said = text_of(message["content"]);
    if (!calls_tools(message) || said.empty()) continue;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      const auto found = message.find(name);
      if (found == message.end() || found->is_null()) continue;
      if (!found->is_string() || *found == "") break;  // the template gets the first of them
      found->get_ref<std::string&>() += "\n" + said;
      message["content"] = "";
      changed = true;
      break;
    }
  }
  return changed;
}

// The call that a result is of: by its id, without one by its place among the results, else the last.
std::size_t call_of(const Json& result, std::size_t place, const Json& calls) {
  const auto id = result.find("tool_call_id");
  if (id == result.end()) return std::min(place, calls.size() - 1);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].contains("id") && calls[i]["id"] == *id) return i;
  }
  return calls.size() - 1;
}

bool part_calls(Json& messages) {
  bool changed = false;
  Json parted = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!calls_tools(messages[i]) || messages[i]["tool_calls"].size() == 1) {
      parted.push_back(messages[i]);
      continue;
    }
    changed = true;
    const Json calls = messages[i]["tool_calls"];
    Json message = std::move(messages[i]);
    std::vector<std::vector<Json>> results(calls.size());
    for (std::size_t place = 0; i + 1 < messages.size() && messages[i + 1]["role"] == "tool"; ++place, ++i) {
      results[call_of(messages[i + 1], place, calls)].push_back(messages[i + 1]);
    }
    for (std::size_t call = 0; call < calls.size(); ++call) {
      message["tool_calls"] = Json::array({calls[call]});
      parted.push_back(std::exchange(message, Json{{"role", "assistant"}, {"content", ""}}));
      for (Json& result : results[call]) parted.push_back(std::move(result));
    }
  }
  messages = std::move(parted);
  return changed;
}

// The changes, as bits.
constexpr unsigned kDescriptions = 1, kReasoning = 2, kCalls = 4;
constexpr unsigned kFewestFirst[] = {0, 1, 2, 4, 3, 5, 6, 7};

// Makes the changes; returns those of them that were none.
unsigned change(unsigned changes, Json& messages, Json& variables) {
  unsigned idle = 0;
  if ((changes & kDescriptions) != 0 && !describe_tools(variables)) idle |= kDescriptions;
  if ((changes & kReasoning) != 0 && !join_reasoning(messages)) idle |= kReasoning;
  if ((changes & kCalls) != 0 && !part_calls(messages)) idle |= kCalls;
  return idle;
}

std::string call_mark(std::size_t message, std::size_t call) {
  return fmt::format("hayloft_call_{}_{}_", message, call);
}
std::string text_mark(std::size_t message) {
  return fmt::format("hayloft_says_{}_", message);
}

// Says what of calls, and of texts beside them, a template leaves out.
struct Losses {
  std::string calls;  // in words; empty: of no message some, and others not
  bool texts = false;
};

class Fitting {
 public:
  Fitting(const Json& messages, const Json& variables, const WriteMessages& write)
      : messages_(messages), variables_(variables), write_(write) {}

  FittedMessages fit() {
    FittedMessages fitted = first_taken();
    if (!doubtful()) return fitted;
    Losses lost = losses();
    if (!lost.calls.empty() && (changes_ & kCalls) == 0) {
      changes_ |= kCalls;
      try {
        fitted = written(messages_);
        lost = losses();
      } catch (const Error&) {  // it takes them in no other form
      }
    }
    if (!lost.calls.empty()) {
      refuse("messages", fmt::format("the model's chat template writes {}, and the model would not see the others: "
                                     "leave them out, with their results",
                                     lost.calls));
    }
    if (lost.texts) {
      fitted.notes.push_back(
          "messages: the model's chat template leaves out what the assistant has said beside some of its tool_calls: "
          "the model does not see it");
    }
    return fitted;
  }

 private:
  FittedMessages written(Json messages) const {
    FittedMessages fitted{std::move(messages), variables_, {}};
    change(changes_, fitted.messages, fitted.variables);
    fitted.text = write_(fitted.messages, fitted.variables);
    return fitted;
  }

  FittedMessages first_taken() {
    std::optional<Error> refusal;
    unsigned idle = 0;  // what would change nothing
    for (const unsigned changes : kFewestFirst) {
      if ((changes & idle) != 0) continue;
      changes_ = changes;
      try {
        return written(messages_);
      } catch (const Error& error) {
        if (refusal) continue;
        refusal = error;
        Json messages = messages_, variables = variables_;
        idle = change(kDescriptions | kReasoning | kCalls, messages, variables);
      }
    }
    throw *refusal;
  }

  // Something may be lost: several calls in a message, or a text beside some.
  bool doubtful() const {
    return std::ranges::any_of(messages_, [](const Json& message) {
      return calls_tools(message) && (message["tool_calls"].size() > 1 || !text_of(message["content"]).empty());
    });
  }

  // Puts marks in the place of names and texts and looks which of them are written.
  Losses losses() const {
    Json marked = messages_;
    for (std::size_t i = 0; i < marked.size(); ++i) {
      Json& message = marked[i];
      if (!calls_tools(message)) continue;
      if (!text_of(message["content"]).empty()) message["content"] = text_mark(i);
      for (std::size_t k = 0; k < message["tool_calls"].size(); ++k) {
        message["tool_calls"][k]["function"]["name"] = call_mark(i, k);
      }
    }
    Losses lost;
    std::string text;
    try {
      text = written(marked).text;
    } catch (const Error&) {  // it looks at them
      return lost;
    }
    const auto misses = [&](const std::string& mark) { return text.find(mark) == std::string::npos; };
    for (std::size_t i = 0; i < marked.size(); ++i) {
      if (!calls_tools(marked[i])) continue;
      const std::size_t calls = marked[i]["tool_calls"].size();
      std::size_t missed = 0;
      for (std::size_t k = 0; k < calls; ++k) missed += misses(call_mark(i, k)) ? 1 : 0;
      if (missed > 0 && missed < calls) {
        lost.calls = fmt::format("{} of the {} tool_calls of a message", calls - missed, calls);
      }
      lost.texts = lost.texts || (marked[i]["content"] == text_mark(i) && misses(text_mark(i)));
    }
    return lost;
  }

  const Json& messages_;
  const Json& variables_;
  const WriteMessages& write_;
  unsigned changes_ = 0;
};

}  // namespace

FittedMessages fit_messages(const Json& messages, const Json& variables, const WriteMessages& write) {
  return Fitting(messages, variables, write).fit();
}

}  // namespace hayloft::runtime::serve::openai
