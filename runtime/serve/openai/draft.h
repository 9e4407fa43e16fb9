#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/serve/openai/fields.h"
#include "runtime/serve/openai/request.h"

namespace hayloft::runtime::serve::openai {

// A request while its fields are read, one by one and in any order.
struct Draft {
  explicit Draft(const Served& by) : served(by) {
    request.model = served.name;
    pattern.sampling = served.sampling;
  }

  const Served& served;
  Request request;
  GenerationRequest pattern;  // what all generations have in common
  std::optional<std::int64_t> max_tokens = {};
  std::int64_t n = 1;
  std::optional<std::uint64_t> seed = {};
  std::optional<bool> audit = {};
  bool stream_options = false;                   // are given
  bool min_tokens = false;                       // are given, above 0
  std::optional<float> repetition_penalty = {};  // over all tokens
  std::optional<float> repeat_penalty = {};      // over the last ones
  std::optional<std::int64_t> repeat_last = {};

  // These belong to completions.
  const Json* prompt = nullptr;
  std::optional<std::int64_t> best_of = {};

  // These belong to chats.
  std::optional<std::int64_t> max_completion_tokens = {};
  std::optional<std::int64_t> top_logprobs = {};
  bool logprobs = false;
  const Json* messages = nullptr;
  const Json* tools = nullptr;
  std::optional<std::string> grammar = {};  // GBNF that the answer keeps to
  std::string grammar_field = {};           // that has asked for it
  bool call_wanted = false;                 // tool_choice: required
  std::string call_of = {};                 // the function that it names; empty: any
  bool tools_wanted = true;                 // false: tool_choice is none
  std::string one_call_field = {};          // that has asked for one call at most; empty: several may come
  std::string most_reasoning_field = {};    // that bounds reasoning; empty: none
  bool generation_prompt = true;
  bool counted = false;             // the prompt's tokens are counted, which takes no room
  Json variables = Json::object();  // of the chat template, beside messages and tools
};

// The fields that both kinds of requests have: how tokens are drawn, when an answer ends, and how it is told.
std::span<const Field<Draft>> common_fields();

// The fields that mean nothing here: whose request it is, and where others would keep or cache it. Answers are the same
// without them.
std::span<const Meaningless> meaningless_fields();

// Takes over what several of them say together.
void settle(Draft& draft);

// Writes the messages of a chat, whose fields have been read, and makes its generations. Throws BadRequest.
void finish_chat(Draft& draft);

// Takes over "MODEL" or "MODEL:CONTEXT". Throws BadRequest 404 where either is not served.
void read_model(const Value& value, Draft& draft);

// The generations of a prompt: n of them, each with a seed of its own, after another's. `text` is what an echo gives.
// Throws BadRequest where they are too many, or too long (hold_to_room).
void add_generations(Draft& draft, std::vector<std::int32_t> tokens, std::string text, const char* field);

// Takes over a grammar, or the schema that an answer of JSON keeps to. Throws BadRequest naming the field and what is
// wrong with it, or that there are two.
void take_grammar(const Value& field, std::string grammar, Draft& draft);
void take_schema(const Value& field, const Json& schema, Draft& draft);
void take_any_object(const Value& field, Draft& draft);

// The grammar of the answer, where it has one or tools have strict schemas. Throws BadRequest.
void add_constraint(Draft& draft);

// The tokens of a text that begins a prompt, or goes on behind the saved context that is asked.
std::vector<std::int32_t> prompt_tokens(std::string_view text, const Draft& draft, std::string_view guard = {});

}  // namespace hayloft::runtime::serve::openai
