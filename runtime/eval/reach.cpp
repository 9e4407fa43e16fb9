#include "runtime/eval/reach.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "offload/text/format.h"

namespace hayloft::runtime::eval {

int block_tokens_for(std::int64_t ctx_size) {
  constexpr std::int64_t least = 64, most = 4096, share = 16;
  return static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(std::clamp(ctx_size / share, least, most))));
}

SessionOptions session_at(SessionOptions session, std::int64_t ctx_size) {
  if (session.cache.block_tokens == 0) session.cache.block_tokens = block_tokens_for(ctx_size);
  return session;
}

bool attended_to_most(const Group& group) {
  return group.referred && !group.dense && group.attended.value().value_or(0) >= most_of_context;
}

std::string attended_percent(const Group& group) {
  return fmt::format("{:.1f}%", 100 * group.attended.value().value_or(0));
}

std::string reach_notes(const std::vector<Group>& groups) {
  std::string text;
  for (const Group& group : groups) {
    if (!attended_to_most(group)) continue;
    text += fmt::format(
        "* {} at {} attended to {} of the context, tail included, so its figures are near those of dense attention; "
        "a longer --ctx-size, a smaller k or --block-tokens below {} leave it something to select\n",
        group.label, format_count(group.ctx_size), attended_percent(group), group.block_tokens);
  }
  return text;
}

}  // namespace hayloft::runtime::eval
