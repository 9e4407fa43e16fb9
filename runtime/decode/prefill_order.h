#pragma once

#include <cstdint>
#include <string>

#include "runtime/decode/session.h"

// Says which loop is outside while a prompt is read, that over chunks or that over layers, and what crosses the link
// for it.
//
// Chunk by chunk, every layer of a chunk is computed before the next chunk: a layer's K/V of all chunks before comes
// over the link for each chunk, which grows with the square of the length. Layer by layer, all chunks go through one
// layer before the next: its K/V stays on the device meanwhile, and the hidden states of all tokens pass through host
// memory, in and out once per layer. Weights lie on the device in both. The K and V that are made, and spilled, are the
// same in both and left out.
namespace hayloft::runtime {

// Global layers of a prompt whose attention is computed. The last layer stops at K and V: nothing reads its output.
int attending_layers(const ModelConfig& config);

// Bytes over the link, which grow with the square of the length: those of a billion tokens are more than 64 bits count.
struct PrefillTraffic {
  double chunk_major = 0;
  double layer_major = 0;
};

// By options.prefill for the global layers; layer_major knows no difference between the strategies. experts: those of
// weights that lie where `experts` says, which chunks bring over the link, layer by layer once where the ring of slots
// holds a layer of them.
PrefillTraffic prefill_traffic(const ModelConfig& config, const SessionOptions& options, std::int64_t tokens,
                               const WeightSizes& weights, const ExpertPlacement& experts);

struct PrefillOrder {
  PrefillOptions::Order order = PrefillOptions::Order::chunk;  // never `automatic`
  std::string why;                                             // with the bytes
};

// As options.prefill.order says, or what moves fewer bytes. resident: the backend keeps a layer's K and V in memory of
// the device while all chunks pass; without that, going layer by layer saves nothing, and going by chunks keeps the
// activations in the caches.
PrefillOrder prefill_order(const ModelConfig& config, const SessionOptions& options, std::int64_t tokens, bool resident,
                           const WeightSizes& weights = {}, const ExpertPlacement& experts = {});

}  // namespace hayloft::runtime
