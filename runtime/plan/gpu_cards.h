#pragma once

#include <cstdint>
#include <string>

// Cards that need not be there, by what their makers publish.
namespace hayloft::runtime::plan {

struct GpuCard {
  int multiprocessors = 0;         // each issues four instructions of a warp per cycle; 0: only the rates are known
  double gigahertz = 0;            // boost clock
  double memory_rate = 0;          // GB/s of device memory
  double link_rate = 0;            // GB/s from host memory
  std::uint64_t memory_bytes = 0;  // of device memory; 0: not known
  double tensor_rate = 0;          // TFLOP/s of f16 with sums in f32, at the boost clock; 0: not known
};

// Returns the card of this name, "rtx4060", in any case and with or without spaces, or of "34,2.5,448,27.2":
// multiprocessors, GHz, GB/s of device memory and of the link. A named card's link has 0.8 of what its lanes carry.
// Throws Error, with the names that there are.
GpuCard parse_card(const std::string& text);

}  // namespace hayloft::runtime::plan
