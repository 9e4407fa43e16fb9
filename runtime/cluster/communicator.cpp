#include "runtime/cluster/communicator.h"

#include <stdexcept>

namespace hayloft::runtime::cluster {

const char* name(Traffic kind) {
  constexpr const char* names[] = {"start", "candidates", "attention", "token"};
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
  if (ranks() == 1) return;
  Ledger::Entry& entry = ledger_.of(kind);
  ++entry.messages;
  (rank() == 0 ? entry.sent : entry.received) += data.size();
}

}  // namespace hayloft::runtime::cluster
