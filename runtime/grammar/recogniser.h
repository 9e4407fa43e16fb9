#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "offload/error.h"
#include "runtime/grammar/grammar.h"

namespace hayloft::runtime::grammar {

// A grammar that can be read in more ways at once than are kept: whoever has sent it has asked for too much.
class GrammarLimit : public Error {
 public:
  using Error::Error;
};

// Reads a text byte by byte and knows after each whether the grammar can still go on. All the ways in which a text may
// have been read so far are one state, which is made when it is first reached and then has a number: a step is a look
// into a table from then on. A way is a stack of places in rules; stacks share their lower parts. Not thread-safe.
class Recogniser {
 public:
  using State = std::int32_t;
  static constexpr State dead = -1;

  explicit Recogniser(Grammar grammar);

  State start() const { return start_; }
  // The state behind one more byte; dead: the grammar has no such text. Throws GrammarLimit where there are too many
  // ways.
  State next(State state, unsigned char byte);
  // The state behind a token that is meant as such.
  State next_token(State state, std::int32_t token);
  // The state of the ways of both, each of which may be dead.
  State either(State one, State other);
  bool may_end(State state) const { return states_[static_cast<std::size_t>(state)].ends; }
  bool must_end(State state) const;  // nothing may follow
  std::size_t size() const { return states_.size(); }

 private:
  using Stack = std::int32_t;  // of `nodes_`
  static constexpr Stack empty = -1;
  struct Node {
    std::int32_t place;  // of `grammar_.symbols`, from where it goes on
    Stack below;
  };
  struct Reached {
    std::vector<Stack> ways;  // ascending; the place of each is a byte to be read
    bool ends = false;
    std::unique_ptr<std::array<State, 256>> next;  // where it was asked for
  };

  Stack node(std::int32_t place, Stack below);
  // Adds the ways in which reading goes on at a place above `below`, up to a byte each.
  void enter(std::int32_t place, Stack below, Reached& into, std::vector<std::pair<std::int32_t, Stack>>& entered);
  State state_of(Reached reached);

  Grammar grammar_;
  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, Stack> known_nodes_;
  std::vector<Reached> states_;
  std::unordered_multimap<std::uint64_t, State> known_states_;
  State start_ = dead;
};

}  // namespace hayloft::runtime::grammar
