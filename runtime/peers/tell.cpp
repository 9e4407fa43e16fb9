#include "runtime/peers/tell.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hayloft::runtime::cluster {
namespace {

constexpr std::size_t most_at_once = std::size_t{1} << 30;  // MPI counts in int

struct Head {
  std::uint64_t bytes = 0;  // of all
  char first[504] = {};     // of them
};

}  // namespace

void tell(Communicator& ranks, Traffic kind, std::string& bytes) {
  Head head;
  const auto in_head = [&] { return std::min(static_cast<std::size_t>(head.bytes), sizeof head.first); };
  if (ranks.rank() == 0) {
    head.bytes = bytes.size();
    std::memcpy(head.first, bytes.data(), in_head());
  }
  ranks.await(kind, std::as_writable_bytes(std::span(&head, 1)));
  bytes.resize(head.bytes);
  std::memcpy(bytes.data(), head.first, in_head());
  for (std::size_t at = in_head(); at < bytes.size();) {
    const std::size_t size = std::min(bytes.size() - at, most_at_once);
    ranks.broadcast(kind, std::as_writable_bytes(std::span(bytes.data() + at, size)));
    at += size;
  }
}

}  // namespace hayloft::runtime::cluster
