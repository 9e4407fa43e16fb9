#pragma once

#include <vector>

#include "gpu/backend.h"
#include "offload/store/store.h"

namespace hayloft::runtime {

// A block on its way from the tail of a layer to host memory.
struct Spill {
  int layer;
  offload::BlockWriter block;
};

// The blocks that a cache has started to spill and has not committed: the device may still be writing them, so their
// memory is not given back before it has done so. Not thread-safe.
class Spills {
 public:
  explicit Spills(gpu::Backend& backend) : backend_(&backend) {}
  Spills(Spills&&) = default;
  Spills& operator=(Spills&& other) noexcept;
  ~Spills() { abandon(); }

  // Returns where the backend is to write the block.
  std::byte* start(int layer, offload::BlockWriter block);
  // Waits for all and takes them, in the order of their start. Throws Error when the device is lost, and then takes
  // none.
  std::vector<Spill> finish();
  void abandon() noexcept;  // waits

 private:
  gpu::Backend* backend_;
  std::vector<Spill> spills_;
};

}  // namespace hayloft::runtime
