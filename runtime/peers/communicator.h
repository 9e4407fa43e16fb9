#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/store/shard.h"

namespace hayloft::runtime::cluster {

// Carries what ranks tell each other: whether they belong together, candidates of a search with their scores, parts of
// attention, the token that was drawn, and what the first was asked for: a line of input, a turn of the server.
enum class Traffic : std::uint8_t { start, candidates, attention, token, turn };
inline constexpr int traffic_count = 5;  // of Traffic
const char* name(Traffic kind);          // as in Traffic

// Bytes that one rank has given to others and got of them, counted as the algorithms need it, whatever MPI makes of it:
// who gives n bytes to an all-gather of N ranks sends n and receives (N - 1) n; a broadcast is sent once and received
// once by each of the others.
struct Ledger {
  // Counts of one kind.
  struct Entry {
    std::uint64_t messages = 0;  // collectives, of two ranks or more
    std::uint64_t sent = 0;      // bytes
    std::uint64_t received = 0;
  };
  std::array<Entry, traffic_count> entries{};

  Entry& of(Traffic kind) { return entries[static_cast<std::size_t>(kind)]; }
  const Entry& of(Traffic kind) const { return entries[static_cast<std::size_t>(kind)]; }
  Entry total() const;
  Ledger since(const Ledger& earlier) const;  // what has come on top of it
};

// The processes that hold a context together, as one of them sees them: its ranks. Every rank makes the same calls in
// the same order and waits in each for the others. Not thread-safe, but for a process alone, whose calls do nothing
// that anybody waits for.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  offload::Shard shard() const { return {rank(), ranks()}; }
  bool first() const { return rank() == 0; }
  bool several() const { return ranks() > 1; }

  // Gives each rank's bytes, the same number of them, to all: all [ranks][own.size()], in their order.
  // Throws Error when a rank is lost.
  void all_gather(Traffic kind, std::span<const std::byte> own, std::span<std::byte> all);
  // Rank 0's bytes come to all. Throws Error likewise.
  void broadcast(Traffic kind, std::span<std::byte> data);
  // The same for what may be long in coming: the others take no processor while they wait. All ranks await, or all
  // broadcast.
  void await(Traffic kind, std::span<std::byte> data);

  const Ledger& ledger() const { return ledger_; }

 protected:
  virtual void gather(std::span<const std::byte> own, std::span<std::byte> all) = 0;
  virtual void cast(std::span<std::byte> data) = 0;
  virtual void cast_late(std::span<std::byte> data) { cast(data); }

 private:
  void count_cast(Traffic kind, std::size_t bytes);

  Ledger ledger_;
};

// This process alone: the one rank of its contexts. Whoever talks to peers need not ask whether there are any.
Communicator& alone();

}  // namespace hayloft::runtime::cluster
