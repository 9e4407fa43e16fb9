#include <fmt/format.h>

#include <algorithm>

#include "runtime/grammar/json_schema.h"
#include "runtime/serve/openai/draft.h"

// The grammar that an answer keeps to: one that was sent, that of a schema, or that of calls of tools.
namespace hayloft::runtime::serve::openai {
namespace {

constexpr std::size_t kMostGrammar = 1 << 20;  // bytes

// Calls between tags: one or several. JSON as Hermes and Qwen write it.
std::string grammar_of_calls(const AnswerForm& form, const std::vector<bool>& strict, const std::string& only,
                             bool behind_tag, bool one_call) {
  std::string rules, calls;
  for (std::size_t i = 0; i < form.tools.size(); ++i) {
    const OfferedTool& tool = form.tools[i];
    if (!only.empty() && tool.name != only) continue;
    const std::string prefix = fmt::format("t{}-", i);
    rules += strict[i] ? grammar::rules_of_arguments(tool.parameters, prefix) : prefix + "root ::= object\n";
    const std::string name = grammar::gbnf_text(Json(tool.name).dump(-1, ' ', false, Json::error_handler_t::replace));
    calls += calls.empty() ? "" : " | ";
    calls += R"("{" ws "\"name\":" ws )" + name + R"( "," ws "\"arguments\":" ws )" + prefix + R"(root ws "}")";
  }
  const std::string call = "call ::= ws ( " + calls + " ) ws \"</tool_call>\"\n" + rules + grammar::json_rules();
  if (behind_tag) return "root ::= call\n" + call;
  const std::string more =
      only.empty() && !one_call ? " ( \"\\n<tool_call>\" call )*" : "";  // a function that is named is called once
  return "root ::= \"<tool_call>\" call" + more + "\n" + call;
}

grammar::Grammar parsed(const std::string& text, const std::string& field, const Draft& draft) {
  try {
    return grammar::parse_gbnf(text, &draft.served.tokenizer);
  } catch (const Error& error) {
    refuse(field, error.what());
  }
}

// An answer behind its reasoning, or in its last channel.
std::string where_answers_begin(const AnswerForm& form) {
  if (form.channels) return "final<|message|>";
  return form.in_thought ? "</think>" : "";
}

// A schema of the answer, beside which tools may be called: not a grammar, which may write calls itself.
bool has_schema(const Draft& draft) {
  return draft.grammar && draft.grammar_field != "grammar";
}

void constrain_calls(Draft& draft, const std::vector<bool>& strict) {
  const AnswerForm& form = draft.request.form;
  const std::string field = draft.call_wanted ? "tool_choice" : "tools";
  if (draft.grammar && !has_schema(draft)) {
    refuse(draft.grammar_field, "beside strict tools or a tool_choice that is required: ask for one");
  }
  const bool or_answer = has_schema(draft) && !draft.call_wanted;  // where a call is required, there is no other answer
  if (!form.tags || draft.served.chat_template->mentions("<function=")) {
    constexpr const char* models = "models that write calls as JSON between <tool_call> and </tool_call>";
    if (draft.call_wanted) refuse(field, fmt::format("calls can be required of {}", models));
    if (or_answer) refuse(draft.grammar_field, fmt::format("beside tools it is there for {}; leave one out", models));
    refuse(field, fmt::format("strict is there for {}", models));
  }
  std::string text;
  try {
    text =
        grammar_of_calls(form, strict, draft.call_of, !draft.call_wanted && !or_answer, !draft.one_call_field.empty());
  } catch (const Error& error) {
    refuse("tools", error.what());
  }
  grammar::Holding holding;
  holding.once = draft.call_wanted || or_answer;
  holding.behind = holding.once ? where_answers_begin(form) : "<tool_call>";
  grammar::Grammar calls = parsed(text, "tools", draft);
  if (or_answer) calls = grammar::either(calls, parsed(*draft.grammar, draft.grammar_field, draft));
  draft.pattern.constraint = std::make_shared<grammar::Constraint>(std::move(calls), std::move(holding));
}

}  // namespace

void take_grammar(const Value& field, std::string text, Draft& draft) {
  if (draft.grammar) field.refuse(draft.grammar_field + " says already what the answer is like");
  if (text.size() > kMostGrammar) field.refuse(fmt::format("is larger than {} bytes", kMostGrammar));
  draft.grammar = std::move(text);
  draft.grammar_field = field.name();
}

void take_schema(const Value& field, const Json& schema, Draft& draft) {
  std::string text;
  try {
    text = grammar::gbnf_of_schema(schema);
  } catch (const Error& error) {
    field.refuse(error.what());
  }
  if (draft.grammar) field.refuse(draft.grammar_field + " says already what the answer is like");
  draft.grammar = std::move(text);
  draft.grammar_field = field.name();
}

void take_any_object(const Value& field, Draft& draft) {
  take_grammar(field, grammar::gbnf_of_object(), draft);
}

// An answer ends with its first call: where that is seen from tags around it, or the model ends it so anyway.
void hold_to_one_call(Draft& draft) {
  AnswerForm& form = draft.request.form;
  if (draft.one_call_field.empty() || form.tools.empty() || form.channels) return;
  if (!form.tags) {
    refuse(draft.one_call_field,
           "one call at most can be asked of models that write calls between tags or in channels");
  }
  if (draft.min_tokens) {
    refuse("min_tokens", "beside " + draft.one_call_field + ", by which a call ends the answer: ask for one");
  }
  form.one_call = true;
  draft.pattern.one_call = std::make_shared<const AnswerForm>(form);
}

void add_constraint(Draft& draft) {
  const std::string held = draft.call_wanted ? "tool_choice" : draft.grammar_field;
  if (draft.min_tokens && !held.empty()) {
    refuse("min_tokens", "beside " + held + ", whose text may end before: ask for one");
  }
  std::vector<bool> strict;
  if (!draft.request.form.tools.empty()) {
    for (const Json& tool : *draft.tools) {
      const auto field = tool["function"].find("strict");
      strict.push_back(field != tool["function"].end() && *field == true);  // null counts as absent
    }
  }
  const bool calls_or_answer = has_schema(draft) && !strict.empty();
  const bool calls_held = draft.call_wanted || calls_or_answer || std::ranges::find(strict, true) != strict.end();
  draft.request.form.early = calls_held;
  hold_to_one_call(draft);
  if (draft.call_wanted) {
    if (strict.empty()) refuse("tool_choice", "asks for a call, but there are no tools");
    const auto& tools = draft.request.form.tools;
    if (!draft.call_of.empty() && std::ranges::find(tools, draft.call_of, &OfferedTool::name) == tools.end()) {
      refuse("tool_choice", "\"" + shown_name(draft.call_of) + "\" is none of the tools");
    }
  }
  if (calls_held) return constrain_calls(draft, strict);
  if (!draft.grammar) return;
  grammar::Holding holding;
  holding.behind = where_answers_begin(draft.request.form);
  draft.pattern.constraint =
      std::make_shared<grammar::Constraint>(parsed(*draft.grammar, draft.grammar_field, draft), std::move(holding));
}

}  // namespace hayloft::runtime::serve::openai
