#include "examples/hayloft/reach.h"

#include <fmt/format.h>

#include "examples/hayloft/process/messages.h"

namespace hayloft::cli {

void note_reach(const runtime::Session& session, const runtime::MethodOptions& method) {
  constexpr double everything = 1 - 1e-9;  // but for rounding
  if (method.name == "dense" || method.name == "auto" || session.attended_share() < everything) return;
  std::string why = "k is no smaller than the context; a smaller k";
  if (session.cache().global_views().back().store.tokens == 0) {
    why = fmt::format(
        "no block of {} tokens is full, and the tail is always attended; reading the context with a smaller "
        "--block-tokens",
        session.cache().options().block_tokens);
  }
  note("note: {} attended to all {} tokens, as dense attention does: {} leaves it something to select\n",
       runtime::method_label(method), session.tokens(), why);
}

}  // namespace hayloft::cli
