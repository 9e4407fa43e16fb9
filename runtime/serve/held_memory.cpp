#include "runtime/serve/held_memory.h"

#include <algorithm>

#include "offload/host/arena.h"

namespace hayloft::runtime::serve {
namespace {

// As the arena hands it out.
std::uint64_t arena_bytes(std::uint64_t bytes) {
  return (bytes + offload::Arena::alignment - 1) / offload::Arena::alignment * offload::Arena::alignment;
}

template <class Parts>
std::uint64_t bytes_of_both(const Parts& some, const Parts& others) {
  if (others.size() < some.size()) return bytes_of_both(others, some);
  std::uint64_t bytes = 0;
  for (const auto& [key, part] : some) bytes += others.contains(key) ? part.bytes : 0;
  return bytes;
}

}  // namespace

HeldMemory::HeldMemory(const std::vector<SharedMethod>& methods) {
  for (const SharedMethod& method : methods) {
    const auto same = [&](const SharedMethod& other) { return other->state_key() == method->state_key(); };
    if (!method->state_key().empty() && std::ranges::none_of(methods_, same)) methods_.push_back(method);
  }
}

template <class Parts, class Key>
void HeldMemory::count_part(Parts& parts, const Key& key, std::uint64_t bytes, bool added) {
  const auto at = parts.try_emplace(key, Part{bytes, 0}).first;
  if (added && at->second.holders++ == 0) host_ += at->second.bytes;
  if (added || --at->second.holders > 0) return;
  host_ -= at->second.bytes;
  parts.erase(at);
}

void HeldMemory::count(const LedSession& session, bool added) {
  const offload::Store& store = session.cache().store();
  const std::uint64_t block_bytes = arena_bytes(store.layout().block_bytes);
  std::optional<std::uint64_t> last;  // not its address, where what is opened twice lies, too
  bool only_opened = true;
  for (int layer = 0; layer < store.shape().layers; ++layer) {
    const offload::LayerView view = store.layer(layer);
    const std::span<const std::byte* const> blocks = view.blocks;
    const std::size_t opened = session.opened_blocks(layer);
    for (std::size_t i = session.opened_in_file() ? opened : 0; i < blocks.size(); ++i) {
      count_part(blocks_, blocks[i], block_bytes, added);
    }
    only_opened = only_opened && opened == blocks.size();
    if (!blocks.empty()) last = view.serials.back();
  }
  count_states(session, only_opened ? last : std::nullopt, added);
  const std::uint64_t tail = session.here().device_bytes();
  added ? tails_ += tail : tails_ -= tail;
}

void HeldMemory::count_states(const LedSession& session, std::optional<std::uint64_t> only_opened, bool added) {
  for (std::size_t i = 0; i < methods_.size(); ++i) {
    const MethodState* const state = session.here().state(*methods_[i]);
    const std::uint64_t bytes = state != nullptr ? state->bytes() : 0;
    if (bytes == 0) continue;
    if (only_opened) {
      count_part(states_, State(*only_opened, i), bytes, added);
    } else {
      added ? host_ += bytes : host_ -= bytes;
    }
  }
}

std::uint64_t HeldMemory::shared_host_bytes(const HeldMemory& other) const {
  return bytes_of_both(blocks_, other.blocks_) + bytes_of_both(states_, other.states_);
}

}  // namespace hayloft::runtime::serve
