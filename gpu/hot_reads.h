#pragma once

#include <cstdint>
#include <vector>

namespace hayloft::gpu {

// Notes what decoding has read often or not long ago of one layer of a sequence, as a backend that keeps such reads in
// device memory knows it (Backend::keeps_reads). A hint for another run over the same context: whatever it says,
// answers are the same.
struct HotReads {
  // f32 [Hkv][runs]: how often each column was read, or each plane of one, of which a step leaves 98%
  // (index::run_use_left); finite, none below 0. Empty: nothing is known.
  std::vector<float> runs;
  // [Hkv]: positions in the store whose rows were read, ascending, each once. Empty: nothing is known.
  std::vector<std::vector<std::int32_t>> rows;

  bool empty() const { return runs.empty() && rows.empty(); }
};

}  // namespace hayloft::gpu
