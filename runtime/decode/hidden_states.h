#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpu/backend.h"

namespace hayloft::runtime {

// The hidden states of a prompt, f32 [tokens][width], from one layer to the next while its chunks go through layer by
// layer. In memory of the device the layers work on them where they lie. In host memory they pass through two buffers:
// while one chunk is worked on, the one before it leaves and the one behind it comes, and nobody waits on the host
// (unless the backend cannot pin that memory). Work is what is queued on Backend::stream().
class HiddenStates {
 public:
  HiddenStates(gpu::Backend& backend, std::int64_t tokens, std::int64_t width, std::int64_t chunk, bool on_device);
  ~HiddenStates();  // waits for the copies under way
  HiddenStates(const HiddenStates&) = delete;
  HiddenStates& operator=(const HiddenStates&) = delete;

  // Returns the states of the chunk that begins at token `at`, for work queued until the next begin(). A layer's chunks
  // come in order. fresh: what is there does not matter, the work writes it.
  float* begin(std::int64_t at, bool fresh);
  // Work queued until now has changed the first T tokens of the chunk begun last, at `at`: the next layer finds them.
  void keep(std::int64_t at, int T);

 private:
  void load(std::int64_t at);

  gpu::Backend& backend_;
  const std::int64_t tokens_, width_, chunk_;
  gpu::Buffer all_;  // [tokens][width] when on the device
  std::shared_ptr<std::byte> host_;
  gpu::Buffer buffers_[2];    // [chunk][width] each, otherwise
  int turn_ = 0;              // which of them the next chunk gets
  std::int64_t coming_ = -1;  // the chunk on its way into that one
  float* current_ = nullptr;  // of the chunk begun last
};

}  // namespace hayloft::runtime
