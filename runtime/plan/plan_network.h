#pragma once

#include <cstdint>
#include <optional>

#include "runtime/attention/method.h"
#include "runtime/checkpoint/config.h"
#include "runtime/machine/network.h"

// Counts what ranks tell each other while they decode (docs/cluster.md), by the formulas that their ledgers are held
// to.
namespace hayloft::runtime::plan {

// The messages of one decoded token, over all global layers and with the token that is drawn.
struct NetworkStep {
  std::uint64_t messages = 0;  // collectives
  std::uint64_t gathered = 0;  // of them all-gathers
  std::uint64_t bytes = 0;     // that each rank gives to the all-gathers; the token's are left out
  // All-gathers, with what a rank gives to them, that a layer whose query heads rank together by softmaxes needs
  // besides when its ranks' own best are not enough, one a layer. In messages, gathered and bytes they are not.
  std::uint64_t further = 0;
  std::uint64_t further_bytes = 0;
};
// Counts those of a step over a cache of that shape, whole or a shard of it, held by so many ranks; one tells nobody
// anything. Throws Error unless the method attends over ranks, where there are several.
std::optional<NetworkStep> network_step(const ModelConfig& config, const Method& method, gpu::CacheView cache,
                                        int ranks);

// Milliseconds: a collective of N ranks takes network_rounds() latencies, and to an all-gather a rank's link brings
// what the N - 1 others give. With all further messages, and not overlapped with anything.
double network_ms(const NetworkStep& step, const Network& network, int ranks);

}  // namespace hayloft::runtime::plan
