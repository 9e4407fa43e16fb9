#include "runtime/serve/http/context_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "runtime/serve/openai/fields.h"
#include "runtime/tokenizer/text_stream.h"

namespace hayloft::runtime::serve::http {
namespace {

using openai::Field;
using openai::Json;
using openai::Value;

constexpr std::int64_t kMostTokens = 4096;
constexpr std::int64_t kLead = 8;  // tokens read before the first, which may end a character or follow a special token

struct Range {
  std::optional<std::int64_t> from, to;
};

constexpr std::int64_t kAnyToken = std::numeric_limits<std::int64_t>::max();
constexpr Field<Range> kRangeFields[] = {
    {"from", [](const Value& value, Range& range) { range.from = value.integer(0, kAnyToken); }},
    {"to", [](const Value& value, Range& range) { range.to = value.integer(0, kAnyToken); }},
};

// The fields of a query as an object: numbers are numbers, all else is text.
Json query_object(std::string_view query) {
  Json object = Json::object();
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), field.size() + 1));
    const std::string name(field.substr(0, field.find('=')));
    const std::string_view text = field.substr(std::min(field.size(), name.size() + 1));
    if (object.contains(name)) openai::refuse(openai::shown_name(name), "it is said twice");
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool numeric = error == std::errc() && end == text.data() + text.size();
    object[name] = numeric ? Json(number) : Json(std::string(text));
  }
  return object;
}

}  // namespace

Reply context_text(const Call& call, const std::string& name, const openai::Served& served,
                   const offload::ModelIdentity& model) {
  if (!served.contexts.contains(name)) return error_reply(404, "there is no such context");
  Range range;
  openai::read_fields<Range>(query_object(call.query), call.path, "", {kRangeFields}, {}, range);
  if (!range.from || !range.to) openai::refuse("", "?from=F&to=T is needed, the text of which tokens");
  const std::int64_t from = *range.from;
  if (*range.to <= from || *range.to - from > kMostTokens) {
    openai::refuse("to", fmt::format("1 to {} tokens behind \"from\" are needed", kMostTokens));
  }
  const offload::Snapshot snapshot = offload::Snapshot::open(served.contexts.path(name));
  snapshot.require_model(model);
  const std::vector<std::int32_t> tokens = snapshot.tokens();
  const auto total = static_cast<std::int64_t>(tokens.size());
  if (from >= total) openai::refuse("from", fmt::format("the context has {} tokens", total));
  const std::int64_t to = std::min(*range.to, total), lead = std::max<std::int64_t>(from - kLead, 0);

  Json pieces = Json::array();
  TextStream text(served.tokenizer, lead > 0 ? tokens[static_cast<std::size_t>(lead - 1)] : -1);  // -1: no token
  for (std::int64_t at = lead; at < to; ++at) {
    std::string piece = text.push(tokens[static_cast<std::size_t>(at)]);
    if (at >= from) pieces.push_back(std::move(piece));
  }
  if (to == total) pieces.back() = pieces.back().get<std::string>() + text.finish();
  const Json told{{"name", name}, {"tokens", total}, {"from", from}, {"to", to}, {"pieces", std::move(pieces)}};
  return {200, "application/json", openai::dumped(told)};
}

}  // namespace hayloft::runtime::serve::http
