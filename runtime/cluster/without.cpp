#include "offload/error.h"
#include "runtime/cluster/mpi/mpi_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/cluster/rank_rest.h"

// Stands for the ranks in a build without them (HAYLOFT_CLUSTER=OFF): one process alone, and one line for who asks
// for several.
namespace hayloft::runtime::cluster {
namespace {

constexpr const char* without = "this hayloft was built without ranks; build it with -DHAYLOFT_CLUSTER=ON";

}  // namespace

std::string missing_mpi() {
  return without;
}

SharedAttender rank_attender(Communicator&) {
  fail("{}", without);
}

void require_over_ranks(const MethodOptions&) {
  fail("{}", without);
}

void require_over_ranks(const MethodOptions&, const CacheOptions&) {
  fail("{}", without);
}

std::uint64_t prefill_bytes_over_ranks(int, int, int, int) {
  fail("{}", without);
}

RestMessages rest_messages(const SelectionPlan&, int, int, bool, Rest) {
  fail("{}", without);
}

MpiRanks::MpiRanks(const std::filesystem::path&) {
  fail("{}", without);
}
MpiRanks::~MpiRanks() = default;
void MpiRanks::abort() const {
  std::abort();
}
void MpiRanks::gather(std::span<const std::byte>, std::span<std::byte>) {}
void MpiRanks::cast(std::span<std::byte>) {}
void MpiRanks::cast_late(std::span<std::byte>) {}

}  // namespace hayloft::runtime::cluster
