#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "runtime/serve/openai/draft.h"

namespace hayloft::runtime::serve::openai {
namespace {

constexpr std::int64_t kMostTokens = std::numeric_limits<int>::max();
constexpr std::int64_t kMostNumber = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMostStops = 16;
constexpr int kMostQuotes = 20;
constexpr int kMostMapped = 2048;
constexpr double kLeastPenalty = 0.01, kMostPenalty = 100;
constexpr std::int64_t kUsualWindow = 64;  // of repeat_penalty, as llama.cpp has it

void read_stop(const Value& value, Draft& draft) {
  std::vector<std::string>& stops = draft.pattern.stop;
  for (const Json& each : value.json().is_array() ? value.json() : Json::array({value.json()})) {
    if (!each.is_string() || each == "") value.refuse("must be a string or a list of strings, none of them empty");
    stops.push_back(each.get<std::string>());
  }
  if (stops.size() > kMostStops) value.refuse(fmt::format("at most {} strings", kMostStops));
}

LogitRules& rules(Draft& draft) {
  return draft.pattern.sampling.rules;
}

std::vector<std::int32_t> token_ids(const Value& value, const Draft& draft) {
  std::vector<std::int32_t> tokens;
  for (const Json& each : value.list()) {
    tokens.push_back(
        static_cast<std::int32_t>(Value(value.name(), each).integer(0, draft.served.config.vocab_size - 1)));
  }
  return tokens;
}

// {"TOKEN": BIAS, ...}
void read_bias(const Value& value, Draft& draft) {
  const int vocab = draft.served.config.vocab_size;
  rules(draft).logit_bias.clear();
  for (const auto& [name, bias] : value.object().items()) {
    std::int32_t token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size() || token < 0 || token >= vocab) {
      value.refuse(fmt::format("\"{}\" is no token from 0 to {}", shown_name(name), vocab - 1));
    }
    rules(draft).logit_bias.emplace_back(token, Value(value.name(), bias).number(-100, 100));
  }
}

constexpr Field<Draft> kStreamFields[] = {
    {"include_usage", [](const Value& value, Draft& draft) { draft.request.include_usage = value.flag(); }},
    {"include_obfuscation", [](const Value& value, Draft&) { value.only({false}); }},
};

// Beyond the API.
constexpr Field<Draft> kExtensionFields[] = {
    {"audit", [](const Value& value, Draft& draft) { draft.audit = value.flag(); }},
    {"map",
     [](const Value& value, Draft& draft) { draft.pattern.map = static_cast<int>(value.integer(0, kMostMapped)); }},
    {"quotes",
     [](const Value& value, Draft& draft) { draft.pattern.quotes = static_cast<int>(value.integer(0, kMostQuotes)); }},
};

void read_extension(const Value& value, Draft& draft) {
  read_fields<Draft>(value.object(), value.name(), value.name() + ".", {kExtensionFields}, {}, draft);
  draft.pattern.audit = draft.audit.value_or(draft.pattern.quotes > 0 || draft.pattern.map > 0);
  if (draft.pattern.map > 0 && !draft.pattern.audit) value.refuse("a map comes with an audit alone");
  if (draft.pattern.quotes > 0 && !draft.pattern.audit) value.refuse("quotes come with an audit alone");
}

constexpr Field<Draft> kCommonFields[] = {
    {"model", read_model},
    {"max_tokens", [](const Value& value, Draft& draft) { draft.max_tokens = value.integer(0, kMostTokens); }},
    {"n", [](const Value& value, Draft& draft) { draft.n = value.integer(1, draft.served.most_choices); }},
    {"seed",
     [](const Value& value, Draft& draft) {
       draft.seed = static_cast<std::uint64_t>(value.integer(std::numeric_limits<std::int64_t>::min(), kMostNumber));
     }},

    // Fields that say how tokens are drawn.
    {"temperature",
     [](const Value& value, Draft& draft) { draft.pattern.sampling.temperature = value.number(0, 100); }},
    {"top_p",
     [](const Value& value, Draft& draft) {  // 0: the likeliest alone
       draft.pattern.sampling.top_p = std::max(value.number(0, 1), std::numeric_limits<float>::min());
     }},
    {"top_k",
     [](const Value& value, Draft& draft) {  // -1: off, as 0 is
       draft.pattern.sampling.top_k = static_cast<int>(std::max<std::int64_t>(value.integer(-1, kMostTokens), 0));
     }},
    {"min_p", [](const Value& value, Draft& draft) { draft.pattern.sampling.min_p = value.number(0, 1); }},
    {"frequency_penalty",
     [](const Value& value, Draft& draft) { rules(draft).frequency_penalty = value.number(-2, 2); }},
    {"presence_penalty", [](const Value& value, Draft& draft) { rules(draft).presence_penalty = value.number(-2, 2); }},
    {"repetition_penalty",
     [](const Value& value, Draft& draft) { draft.repetition_penalty = value.number(kLeastPenalty, kMostPenalty); }},
    {"repeat_penalty",
     [](const Value& value, Draft& draft) { draft.repeat_penalty = value.number(kLeastPenalty, kMostPenalty); }},
    {"repeat_last_n", [](const Value& value, Draft& draft) { draft.repeat_last = value.integer(-1, kMostTokens); }},
    {"no_repeat_ngram_size",
     [](const Value& value, Draft& draft) {
       rules(draft).no_repeat_ngram_size = static_cast<int>(value.integer(0, kMostTokens));
     }},
    {"suppress_tokens",
     [](const Value& value, Draft& draft) { rules(draft).suppress_tokens = token_ids(value, draft); }},
    {"logit_bias", read_bias},
    {"grammar", [](const Value& value, Draft& draft) { take_grammar(value, value.text(), draft); }},
    {"use_beam_search", [](const Value& value, Draft&) { value.only({false}); }},

    // Fields that say when an answer ends.
    {"stop", read_stop},
    {"stop_token_ids", [](const Value& value, Draft& draft) { draft.pattern.stop_tokens = token_ids(value, draft); }},
    {"min_tokens",
     [](const Value& value, Draft& draft) {
       rules(draft).min_new_tokens = static_cast<int>(value.integer(0, kMostTokens));
       draft.min_tokens = rules(draft).min_new_tokens > 0;
     }},
    {"ignore_eos", [](const Value& value, Draft& draft) { draft.pattern.ignore_end = value.flag(); }},

    // Fields that say how it is told.
    {"stream", [](const Value& value, Draft& draft) { draft.request.stream = value.flag(); }},
    {"stream_options",
     [](const Value& value, Draft& draft) {
       read_fields<Draft>(value.object(), value.name(), value.name() + ".", {kStreamFields}, {}, draft);
       draft.stream_options = true;
     }},
    {"skip_special_tokens", [](const Value& value, Draft&) { value.only({true}); }},
    {"include_stop_str_in_output", [](const Value& value, Draft&) { value.only({false}); }},
    {"hayloft", read_extension},
};

// An output that is expected, a text or parts.
void check_prediction(const Value& value) {
  const Json& prediction = value.object();
  const bool known = prediction.contains("type") && prediction["type"] == "content" && prediction.contains("content");
  if (!known || !(prediction["content"].is_string() || prediction["content"].is_array())) {
    value.refuse("must have the type content, and a content that is a text or a list of parts");
  }
}

constexpr Meaningless kMeaninglessFields[] = {
    {"user", must_be::text},
    {"metadata", must_be::labels},
    {"store", must_be::flag},
    {"safety_identifier", must_be::text},
    {"prompt_cache_key", must_be::text},
    {"prompt_cache_retention", must_be::text},
    {"service_tier", must_be::text},
    {"prediction", check_prediction},
    {"cache_prompt", must_be::flag},
    {"id_slot", must_be::integer},
};

}  // namespace

std::span<const Field<Draft>> common_fields() {
  return kCommonFields;
}

void settle(Draft& draft) {
  LogitRules& all = rules(draft);
  if (draft.repetition_penalty && draft.repeat_penalty) {
    refuse("repeat_penalty", "is repetition_penalty over the last repeat_last_n tokens: say one of them");
  }
  if (draft.repeat_last && !draft.repeat_penalty) refuse("repeat_last_n", "comes with repeat_penalty");
  if (draft.repetition_penalty) {
    all.repetition_penalty = *draft.repetition_penalty;
    all.repetition_window = 0;
  }
  if (draft.repeat_penalty) {
    const std::int64_t last = draft.repeat_last.value_or(kUsualWindow);
    all.repetition_penalty = last == 0 ? 1 : *draft.repeat_penalty;
    all.repetition_window = std::max<std::int64_t>(last, 0);
  }
  if (draft.stream_options && !draft.request.stream) refuse("stream_options", "comes with stream: true");
  const std::int64_t most =
      std::min(draft.max_tokens.value_or(kMostTokens), draft.max_completion_tokens.value_or(kMostTokens));
  if (rules(draft).min_new_tokens > most)
    refuse("min_tokens", fmt::format("must be at most the {} of max_tokens", most));
  all.end_tokens.insert(all.end_tokens.end(), draft.pattern.stop_tokens.begin(), draft.pattern.stop_tokens.end());
}

std::span<const Meaningless> meaningless_fields() {
  return kMeaninglessFields;
}

}  // namespace hayloft::runtime::serve::openai
