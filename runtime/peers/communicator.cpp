#include "runtime/peers/communicator.h"

#include <algorithm>
#include <stdexcept>

namespace hayloft::runtime::cluster {
namespace {

class Alone final : public Communicator {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }

 private:
  void gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    std::ranges::copy(own, all.begin());
  }
  void cast(std::span<std::byte>) override {}
};

}  // namespace

const char* name(Traffic kind) {
  constexpr const char* names[] = {"start", "candidates", "attention", "token", "turn"};
  return names[static_cast<int>(kind)];
}

Ledger::Entry Ledger::total() const {
  Entry sum;
  for (const Entry& entry : entries) {
    sum.messages += entry.messages;
    sum.sent += entry.sent;
    sum.received += entry.received;
  }
  return sum;
}

Ledger Ledger::since(const Ledger& earlier) const {
  Ledger more = *this;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    more.entries[i].messages -= earlier.entries[i].messages;
    more.entries[i].sent -= earlier.entries[i].sent;
    more.entries[i].received -= earlier.entries[i].received;
  }
  return more;
}

void Communicator::all_gather(Traffic kind, std::span<const std::byte> own, std::span<std::byte> all) {
  if (all.size() != own.size() * static_cast<std::size_t>(ranks())) {
    throw std::logic_error("all_gather: the room is not that of all ranks");
  }
  gather(own, all);
  if (ranks() == 1) return;
  Ledger::Entry& entry = ledger_.of(kind);
  ++entry.messages;
  entry.sent += own.size();
  entry.received += all.size() - own.size();
}

void Communicator::broadcast(Traffic kind, std::span<std::byte> data) {
  cast(data);
  count_cast(kind, data.size());
}

void Communicator::await(Traffic kind, std::span<std::byte> data) {
  cast_late(data);
  count_cast(kind, data.size());
}

Communicator& alone() {
  static Alone process;
  return process;
}

void Communicator::count_cast(Traffic kind, std::size_t bytes) {
  if (ranks() == 1) return;
  Ledger::Entry& entry = ledger_.of(kind);
  ++entry.messages;
  (rank() == 0 ? entry.sent : entry.received) += bytes;
}

}  // namespace hayloft::runtime::cluster
