#pragma once

#include <cstdint>

#include "runtime/machine/noise_store.h"
#include "runtime/machine/profile.h"
#include "runtime/machine/turn_timer.h"

// The operations of attention while decoding, each by itself over a store of noise: what AttentionRates holds.
namespace hayloft::runtime::plan {

// Medians that the functions below take of one head dimension and group size.
inline constexpr int store_measurements = 7;   // measure_store
inline constexpr int search_measurements = 2;  // measure_selection
inline constexpr int tail_measurements = 3;    // measure_tail

// Measures what reads the store, over the first `footprint` bytes of the memory, a part of `parts` each turn.
void measure_store(TurnTimer& timer, const NoiseMemory& memory, std::uint64_t footprint, int parts,
                   AttentionRates& rates);

// Measures what selecting one more position takes, once the rates of measure_store() over the same slices are there.
void measure_selection(TurnTimer& timer, const NoiseMemory& memory, std::uint64_t footprint, int parts,
                       AttentionRates& rates);

// Measures what reads the newest tokens, in tails that are as large together as a sixteenth of the footprint, and a
// prompt behind at most `footprint / parts` bytes of store.
void measure_tail(TurnTimer& timer, const NoiseMemory& memory, std::uint64_t footprint, int parts,
                  AttentionRates& rates);

// GB/s of searching an index of `ann`, centroids and keys counted in: one of two heads, made here. One median.
double measure_ann_search(TurnTimer& timer, const NoiseMemory& memory, int head_dim);

}  // namespace hayloft::runtime::plan
