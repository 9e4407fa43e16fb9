#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace hayloft::runtime::serve {

// Tokens of a prompt that are read although they had been read before, and why.
struct ReadAgain {
  std::uint64_t chunk = 0;    // behind the last whole chunk of an earlier prompt, or in its answer
  std::uint64_t let_go = 0;   // the session that had read them is not kept any more
  std::uint64_t changed = 0;  // they stand as they stood, but what is before them has changed
};

// Knows the last prompts, with the answers to them, to tell which tokens of a new one were among them. Not thread-safe.
class ReadHistory {
 public:
  // Compares a prompt behind a saved context, or none, of which the first `cached` tokens need not be read. chunk: how
  // many are read at a time.
  ReadAgain compare(const std::string& context, std::span<const std::int32_t> tokens, std::size_t cached,
                    std::size_t chunk) const;
  // In place of those that it begins with.
  void add(const std::string& context, std::span<const std::int32_t> tokens);

 private:
  struct Prompt {
    std::string context;
    std::vector<std::int32_t> tokens;
  };
  std::deque<Prompt> prompts_;  // the oldest first
  std::size_t tokens_ = 0;      // of all
};

}  // namespace hayloft::runtime::serve
