#include "runtime/serve/session_pool.h"

#include <algorithm>

namespace hayloft::runtime::serve {

std::size_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(end - a.begin());
}

LedSession SessionPool::Beginning::fork() const {
  const auto left_out = static_cast<std::int64_t>(entry->tokens.size() - tokens);
  return entry->session.fork_at(entry->session.tokens() - left_out);
}

SessionPool::Beginning SessionPool::longest(const std::string& context, std::span<const std::int32_t> tokens,
                                            bool conversation) {
  Entry* best = nullptr;
  std::size_t most = 0;
  for (Entry& entry : entries_) {
    if (entry.context != context || tokens.empty() || (best && entry.tokens.size() <= most)) continue;
    if (entry.conversation > 0 && !conversation) continue;  // it ends inside a chunk
    const std::size_t common = common_prefix(entry.tokens, tokens.first(tokens.size() - 1));
    if (best && common <= most) continue;
    if (common < entry.tokens.size()) {
      if (entry.conversation == 0 || common < entry.conversation) continue;
      const auto left_out = static_cast<std::int64_t>(entry.tokens.size() - common);
      if (entry.session.tokens() - left_out < entry.session.rewinds_to()) continue;
    }
    best = &entry;
    most = common;
  }
  if (best) best->last_use = ++uses_;
  return {best, most};
}

void SessionPool::put(const std::string& context, std::span<const std::int32_t> tokens, LedSession session,
                      std::size_t conversation) {
  drop(context, tokens);
  entries_.push_back({context, {tokens.begin(), tokens.end()}, std::move(session), conversation, ++uses_});
  held_.add(entries_.back().session);
}

template <class Which>
void SessionPool::drop_if(const Which& which) {
  entries_.remove_if([&](const Entry& entry) {
    const bool goes = which(entry);
    if (goes) held_.remove(entry.session);
    return goes;
  });
}

void SessionPool::drop(const std::string& context, std::span<const std::int32_t> tokens) {
  drop_if([&](const Entry& entry) { return entry.context == context && std::ranges::equal(entry.tokens, tokens); });
}

void SessionPool::drop_unless_talked(const std::string& context, std::span<const std::int32_t> tokens) {
  drop_if([&](const Entry& entry) {
    return entry.context == context && entry.conversation == 0 && std::ranges::equal(entry.tokens, tokens);
  });
}

void SessionPool::drop_context(const std::string& context) {
  drop_if([&](const Entry& entry) { return entry.context == context; });
}

const Session* SessionPool::of_context(const std::string& context) const {
  const auto found = std::ranges::find(entries_, context, &Entry::context);
  return found == entries_.end() ? nullptr : &found->session.here();
}

bool SessionPool::drop_one(const Entry* spared) {
  const auto worth = [&](const Entry& entry) {
    const auto tokens =  // an opened context itself stands for all that it has
        entry.tokens.empty() ? static_cast<double>(entry.session.tokens()) : static_cast<double>(entry.tokens.size());
    return tokens / static_cast<double>(1 + uses_ - entry.last_use);
  };
  auto least = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (&*at != spared && (least == entries_.end() || worth(*at) < worth(*least))) least = at;
  }
  if (least == entries_.end()) return false;
  held_.remove(least->session);
  entries_.erase(least);
  return true;
}

}  // namespace hayloft::runtime::serve
