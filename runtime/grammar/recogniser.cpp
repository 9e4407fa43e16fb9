#include "runtime/grammar/recogniser.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"

namespace hayloft::runtime::grammar {
namespace {

constexpr std::size_t kMostNodes = 4'000'000;
constexpr std::size_t kMostStates = 300'000;
constexpr std::size_t kMostWays = 20'000;  // of one state
constexpr std::int32_t kUnknown = -2;

}  // namespace

Recogniser::Recogniser(Grammar grammar) : grammar_(std::move(grammar)) {
  Reached first;
  std::vector<std::pair<std::int32_t, Stack>> entered;
  for (const std::int32_t place : grammar_.rules[static_cast<std::size_t>(grammar_.root)]) {
    enter(place, empty, first, entered);
  }
  start_ = state_of(std::move(first));
}

Recogniser::Stack Recogniser::node(std::int32_t place, Stack below) {
  const std::uint64_t key =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(place)) << 32) | static_cast<std::uint32_t>(below);
  const auto [at, added] = known_nodes_.try_emplace(key, static_cast<Stack>(nodes_.size()));
  if (added) {
    if (nodes_.size() >= kMostNodes)
      throw GrammarLimit("the grammar is too ambiguous for this text: too many ways to read it");
    nodes_.push_back({place, below});
  }
  return at->second;
}

void Recogniser::enter(std::int32_t place, Stack below, Reached& into,
                       std::vector<std::pair<std::int32_t, Stack>>& entered) {
  std::vector<std::pair<std::int32_t, Stack>> open{{place, below}};
  while (!open.empty()) {
    auto [at, under] = open.back();
    open.pop_back();
    Symbol symbol = grammar_.symbols[static_cast<std::size_t>(at)];
    while (symbol.kind == Symbol::Kind::end && under != empty) {  // goes on behind the call
      const Node back = nodes_[static_cast<std::size_t>(under)];
      at = back.place;
      under = back.below;
      symbol = grammar_.symbols[static_cast<std::size_t>(at)];
    }
    if (symbol.kind == Symbol::Kind::end) {
      into.ends = true;
    } else if (symbol.kind == Symbol::Kind::bytes) {
      into.ways.push_back(node(at, under));
    } else {
      if (std::ranges::find(entered, std::pair(at, under)) != entered.end()) continue;
      entered.emplace_back(at, under);
      if (entered.size() + into.ways.size() > kMostWays) {
        throw GrammarLimit("the grammar is too ambiguous for this text: too many ways to read it");
      }
      // A call that ends an alternative leaves nothing behind: lists stay as flat as they are long.
      const bool last = grammar_.symbols[static_cast<std::size_t>(at) + 1].kind == Symbol::Kind::end;
      const Stack back = last ? under : node(at + 1, under);
      for (const std::int32_t each : grammar_.rules[static_cast<std::size_t>(symbol.index)])
        open.emplace_back(each, back);
    }
  }
}

Recogniser::State Recogniser::state_of(Reached reached) {
  std::ranges::sort(reached.ways);
  reached.ways.erase(std::unique(reached.ways.begin(), reached.ways.end()), reached.ways.end());
  if (reached.ways.empty() && !reached.ends) return dead;
  std::uint64_t hash = reached.ends;
  for (const Stack way : reached.ways)
    hash = (hash ^ static_cast<std::uint32_t>(way)) * 0x9E3779B97F4A7C15ULL + (hash >> 29);
  const auto [begin, end] = known_states_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const Reached& other = states_[static_cast<std::size_t>(at->second)];
    if (other.ends == reached.ends && other.ways == reached.ways) return at->second;
  }
  if (states_.size() >= kMostStates) throw GrammarLimit("the grammar has too many states for this text");
  states_.push_back(std::move(reached));
  known_states_.emplace(hash, static_cast<State>(states_.size() - 1));
  return static_cast<State>(states_.size() - 1);
}

Recogniser::State Recogniser::next(State state, unsigned char byte) {
  Reached& from = states_[static_cast<std::size_t>(state)];
  if (!from.next) {
    from.next = std::make_unique<std::array<State, 256>>();
    from.next->fill(kUnknown);
  }
  if ((*from.next)[byte] != kUnknown) return (*from.next)[byte];
  Reached reached;
  std::vector<std::pair<std::int32_t, Stack>> entered;
  for (const Stack way : from.ways) {
    const Node at = nodes_[static_cast<std::size_t>(way)];
    const Symbol symbol = grammar_.symbols[static_cast<std::size_t>(at.place)];
    if (grammar_.sets[static_cast<std::size_t>(symbol.index)].test(byte))
      enter(at.place + 1, at.below, reached, entered);
  }
  const State to = state_of(std::move(reached));
  (*states_[static_cast<std::size_t>(state)].next)[byte] = to;
  return to;
}

Recogniser::State Recogniser::next_token(State state, std::int32_t token) {
  for (const std::int32_t byte : {std::int32_t{kTokenMark}, (token >> 16) & 0xFF, (token >> 8) & 0xFF, token & 0xFF}) {
    if (state != dead) state = next(state, static_cast<unsigned char>(byte));
  }
  return state;
}

Recogniser::State Recogniser::either(State one, State other) {
  if (one == dead || one == other) return other;
  if (other == dead) return one;
  const Reached& first = states_[static_cast<std::size_t>(one)];
  const Reached& second = states_[static_cast<std::size_t>(other)];
  Reached both{first.ways, first.ends || second.ends, nullptr};
  both.ways.insert(both.ways.end(), second.ways.begin(), second.ways.end());
  return state_of(std::move(both));
}

bool Recogniser::must_end(State state) const {
  const Reached& reached = states_[static_cast<std::size_t>(state)];
  return reached.ends && reached.ways.empty();
}

}  // namespace hayloft::runtime::grammar
