#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "runtime/serve/held_memory.h"
#include "runtime/serve/ranks/led_session.h"

namespace hayloft::runtime::serve {

// Sessions that nobody decodes now, kept so that a request which begins like one of them does not read that part again.
// Where room is needed, the one goes first that is cheapest to read again for the time it has lain unused: a short
// request on the side does not drive out a book, nor a context that has been opened and would be mapped once more. Not
// thread-safe.
class SessionPool {
 public:
  struct Entry {
    std::string context;               // the saved context that the tokens follow; empty: none
    std::vector<std::int32_t> tokens;  // all that it has read behind it
    LedSession session;
    std::size_t conversation = 0;  // so many of the tokens are a conversation, and the others an answer to it
    std::uint64_t last_use = 0;
  };
  // methods: of HeldMemory.
  explicit SessionPool(const std::vector<SharedMethod>& methods = {}) : held_(methods) {}

  // What a request goes on from: all that an entry has read, or its first tokens.
  struct Beginning {
    const Entry* entry = nullptr;
    std::size_t tokens = 0;
    LedSession fork() const;  // of the entry's session, behind those tokens
  };

  // The entry with the most tokens that begin `tokens` (fewer than all of them: the last is for step()); none when
  // there is none. An entry of a conversation serves conversations alone, which may part from it in the answer, where
  // its session can be cut; what is none goes on from whole chunks. The entry stays in the pool and counts as used.
  Beginning longest(const std::string& context, std::span<const std::int32_t> tokens, bool conversation = false);

  // Takes a session in; one with the same tokens is replaced.
  void put(const std::string& context, std::span<const std::int32_t> tokens, LedSession session,
           std::size_t conversation = 0);
  // Drops the session with just these tokens, unless it is a conversation's.
  void drop_unless_talked(const std::string& context, std::span<const std::int32_t> tokens);
  void drop_context(const std::string& context);

  const Session* of_context(const std::string& context) const;  // any; null when there is none
  // The least worth keeping but for `spared`; false when there is none.
  bool drop_one(const Entry* spared = nullptr);
  const HeldMemory& held() const { return held_; }  // by all entries
  std::uint64_t bytes() const { return held_.host_bytes() + held_.tail_bytes(); }
  std::size_t size() const { return entries_.size(); }

 private:
  template <class Which>
  void drop_if(const Which& which);
  void drop(const std::string& context, std::span<const std::int32_t> tokens);

  std::list<Entry> entries_;
  HeldMemory held_;
  std::uint64_t uses_ = 0;
};

// Returns how many tokens both begin with.
std::size_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

}  // namespace hayloft::runtime::serve
