#include <fmt/format.h>

#include <limits>

#include "runtime/serve/openai/draft.h"

namespace hayloft::runtime::serve::openai {
namespace {

constexpr std::int64_t kMostTokens = std::numeric_limits<int>::max();
constexpr std::int64_t kMostNumber = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMostStops = 16;
constexpr int kMostQuotes = 20;

void read_stop(const Value& value, Draft& draft) {
  std::vector<std::string>& stops = draft.pattern.stop;
  for (const Json& each : value.json().is_array() ? value.json() : Json::array({value.json()})) {
    if (!each.is_string()) value.refuse("must be a string or a list of strings");
    stops.push_back(each.get<std::string>());
  }
  if (stops.size() > kMostStops) value.refuse(fmt::format("at most {} strings", kMostStops));
}

void read_stop_tokens(const Value& value, Draft& draft) {
  const int vocab = draft.served.config.vocab_size;
  for (const Json& each : value.list()) {
    draft.pattern.stop_tokens.push_back(static_cast<std::int32_t>(Value(value.name(), each).integer(0, vocab - 1)));
  }
}

constexpr Field<Draft> kStreamFields[] = {
    {"include_usage", [](const Value& value, Draft& draft) { draft.request.include_usage = value.flag(); }},
    {"include_obfuscation", [](const Value& value, Draft&) { value.only({false}); }},
};

// Beyond the API.
constexpr Field<Draft> kExtensionFields[] = {
    {"audit", [](const Value& value, Draft& draft) { draft.audit = value.flag(); }},
    {"quotes",
     [](const Value& value, Draft& draft) {
       draft.pattern.quotes = static_cast<int>(value.integer(0, kMostQuotes));
     }},
};

void read_extension(const Value& value, Draft& draft) {
  read_fields<Draft>(value.object(), value.name(), value.name() + ".", {kExtensionFields}, {}, draft);
  draft.pattern.audit = draft.audit.value_or(draft.pattern.quotes > 0);
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

    // How tokens are drawn.
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
    {"frequency_penalty", [](const Value& value, Draft&) { value.only({0}); }},
    {"presence_penalty", [](const Value& value, Draft&) { value.only({0}); }},
    {"repetition_penalty", [](const Value& value, Draft&) { value.only({1}); }},
    {"repeat_penalty", [](const Value& value, Draft&) { value.only({1}); }},
    {"logit_bias", [](const Value& value, Draft&) { value.only({Json::object()}); }},
    {"use_beam_search", [](const Value& value, Draft&) { value.only({false}); }},

    // When an answer ends.
    {"stop", read_stop},
    {"stop_token_ids", read_stop_tokens},
    {"min_tokens", [](const Value& value, Draft&) { value.only({0}); }},
    {"ignore_eos", [](const Value& value, Draft& draft) { draft.pattern.ignore_end = value.flag(); }},

    // How it is told.
    {"stream", [](const Value& value, Draft& draft) { draft.request.stream = value.flag(); }},
    {"stream_options",
     [](const Value& value, Draft& draft) {
       read_fields<Draft>(value.object(), value.name(), value.name() + ".", {kStreamFields}, {}, draft);
     }},
    {"skip_special_tokens", [](const Value& value, Draft&) { value.only({true}); }},
    {"include_stop_str_in_output", [](const Value& value, Draft&) { value.only({false}); }},
    {"hayloft", read_extension},
};

constexpr const char* kMeaninglessFields[] = {
    "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "service_tier", "prediction", "cache_prompt", "id_slot",
};

}  // namespace

std::span<const Field<Draft>> common_fields() {
  return kCommonFields;
}

std::span<const char* const> meaningless_fields() {
  return kMeaninglessFields;
}

}  // namespace hayloft::runtime::serve::openai
