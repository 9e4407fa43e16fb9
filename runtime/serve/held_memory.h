#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/attention/method.h"
#include "runtime/serve/ranks/led_session.h"

namespace hayloft::runtime::serve {

// Counts the memory that sessions hold together: a block once, however many share it, and not at all where it lies in a
// file; a tail for each. What a method keeps of a sequence is counted for each as well, but that of an opened context
// once for those that have added no block to it. Not thread-safe.
class HeldMemory {
 public:
  // methods: those that sessions decode by, or draft by. None may be null.
  explicit HeldMemory(const std::vector<SharedMethod>& methods = {});

  void add(const LedSession& session) { count(session, true); }
  void remove(const LedSession& session) { count(session, false); }  // one that is as it was when it was added

  std::uint64_t host_bytes() const { return host_; }  // blocks, and what methods keep
  std::uint64_t tail_bytes() const { return tails_; }
  std::uint64_t shared_host_bytes(const HeldMemory& other) const;  // of what both count, once

 private:
  struct Part {
    std::uint64_t bytes = 0;
    std::size_t holders = 0;
  };
  using State = std::pair<std::uint64_t, std::size_t>;  // behind the block of which serial, of which method
  void count(const LedSession& session, bool added);
  void count_states(const LedSession& session, std::optional<std::uint64_t> only_opened, bool added);
  template <class Parts, class Key>
  void count_part(Parts& parts, const Key& key, std::uint64_t bytes, bool added);

  std::vector<SharedMethod> methods_;  // with different states
  std::unordered_map<const std::byte*, Part> blocks_;
  std::map<State, Part> states_;  // that several may share
  std::uint64_t host_ = 0, tails_ = 0;
};

}  // namespace hayloft::runtime::serve
