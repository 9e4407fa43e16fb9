#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace hayloft::runtime {

// A text as tokens, and where its newest tokens have been before: an index of its runs of few tokens, by hash, which a
// million tokens fill in a fraction of a second. What it finds depends on the text alone.
class Lookup {
 public:
  // Runs of so many tokens are indexed, and nothing shorter is found.
  static constexpr std::array<int, 2> orders = {8, 3};
  static constexpr int longest = 32;  // a longer agreement counts as this

  // A place where the text was as it is at its end.
  struct Found {
    std::int64_t next = 0;  // the position behind it
    int length = 0;         // of the agreement; 0: there is no such place
  };

  void read(std::span<const std::int32_t> tokens);
  void push(std::int32_t token) { read({&token, 1}); }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  std::int32_t back() const { return tokens_.back(); }

  // The longest agreement among the newest places of a run of eight tokens, or where there is none of three; the newest
  // of equals.
  Found find() const;
  // The next `count` tokens if the text goes on as it did there: a copy that reaches the end of the text goes on with
  // what it has copied.
  std::vector<std::int32_t> copy(const Found& found, int count) const;

 private:
  struct Runs {
    std::vector<std::int32_t> newest;    // by hash: where the newest run ends; -1: nowhere
    std::vector<std::int32_t> previous;  // by where a run ends: where the one before of that hash ends
  };
  std::size_t hash_of_run(std::int64_t end, int order) const;
  void add(std::int64_t end);
  int agreement(std::int64_t a, std::int64_t b) const;

  std::vector<std::int32_t> tokens_;
  std::array<Runs, orders.size()> runs_;
};

}  // namespace hayloft::runtime
