#include "runtime/serve/read_history.h"

#include <algorithm>

namespace hayloft::runtime::serve {
namespace {

constexpr std::size_t kMostPrompts = 32, kMostTokens = 2'000'000;
constexpr std::size_t kSame = 32;      // tokens in a row that are no accident
constexpr std::size_t kLookFor = 512;  // how far behind a change what follows it is looked for

std::size_t equal_tokens(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(end - a.begin());
}

// Counts tokens of `now` that stand behind a change as they do in `before`, both from where they part.
std::size_t shifted(std::span<const std::int32_t> before, std::span<const std::int32_t> now) {
  for (std::size_t at = 0; at < kLookFor && at + kSame <= before.size(); ++at) {
    const std::span<const std::int32_t> window = before.subspan(at, kSame);
    const std::span<const std::int32_t> where = now.first(std::min(now.size(), kLookFor + kSame));
    const auto found = std::search(where.begin(), where.end(), window.begin(), window.end());
    if (found != where.end()) {
      return equal_tokens(before.subspan(at), now.subspan(static_cast<std::size_t>(found - where.begin())));
    }
  }
  return 0;
}

}  // namespace

ReadAgain ReadHistory::compare(const std::string& context, std::span<const std::int32_t> tokens, std::size_t cached,
                               std::size_t chunk) const {
  const Prompt* best = nullptr;
  std::size_t common = 0;
  for (const Prompt& each : prompts_) {
    if (each.context != context) continue;
    const std::size_t same = equal_tokens(each.tokens, tokens);
    if (best && same < common) continue;
    best = &each;
    common = same;
  }
  ReadAgain again;
  if (!best) return again;
  if (common > cached) (common - cached < chunk ? again.chunk : again.let_go) = common - cached;
  if (common < best->tokens.size() && common < tokens.size() && cached <= common) {
    again.changed = shifted(std::span(best->tokens).subspan(common), tokens.subspan(common));
  }
  return again;
}

void ReadHistory::add(const std::string& context, std::span<const std::int32_t> tokens) {
  std::erase_if(prompts_, [&](const Prompt& each) {
    const bool begins = each.context == context && equal_tokens(each.tokens, tokens) == each.tokens.size();
    if (begins) tokens_ -= each.tokens.size();
    return begins;
  });
  prompts_.push_back({context, {tokens.begin(), tokens.end()}});
  tokens_ += tokens.size();
  while (prompts_.size() > kMostPrompts || (tokens_ > kMostTokens && prompts_.size() > 1)) {
    tokens_ -= prompts_.front().tokens.size();
    prompts_.pop_front();
  }
}

}  // namespace hayloft::runtime::serve
