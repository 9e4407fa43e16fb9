#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "gpu/backend.h"
#include "gpu/cuda/device_store.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/stream.cuh"
#include "gpu/link_choice.h"

// What every verb of the CUDA backend works with. One context per backend, passed by reference; no file-scope state.
namespace hayloft::gpu::cuda {

class DeviceArena;  // budgeted device memory, gpu/cuda/device_arena.cuh
class HostPins;     // host memory that the device reads in place, gpu/cuda/host_pins.cuh
class StoreTables;  // block tables on the device, gpu/cuda/store_tables.cuh
class StagingRing;  // a little pinned memory that pageable memory passes through, gpu/cuda/staging.cuh
class SpillImage;   // where blocks take shape on their way out, gpu/cuda/spill_image.cuh
class Crossing;     // one stream waiting for another, below
struct Cublas;      // gpu/cuda/cublas.cuh
class StageClock;   // how long parts of verbs take, gpu/cuda/stage_clock.cuh

struct Context {
  int device = 0;
  int multiprocessors = 0;
  unsigned shared_bytes = 0;  // a block may have
  bool bf16_products = true;  // whether the device multiplies bf16 as fast as f16
  LinkChoice link;            // never automatic
  std::uint64_t least_copy_bytes = 0;
  bool pin_host = true;  // whether the user wants host memory pinned at all

  cudaStream_t compute = nullptr;  // what Backend::stream() is
  cudaStream_t copies = nullptr;   // host to device

  DeviceArena* arena = nullptr;
  HostPins* pins = nullptr;
  StoreTables* tables = nullptr;
  StagingRing* staging = nullptr;
  SpillImage* spill_image = nullptr;
  Crossing* crossing = nullptr;
  Cublas* cublas = nullptr;
  StageClock* stages = nullptr;
  const offload::Threads* threads = nullptr;
};

// One event serves for all orderings: a stream that waits for it waits for what was recorded when the wait was queued,
// whatever is recorded later. Thread-safe.
class Crossing {
 public:
  void order(cudaStream_t before, cudaStream_t after);

 private:
  std::mutex mutex_;
  Event event_;
};

// Device memory for the length of a verb: allocated and freed in stream order, so that freeing it while kernels that
// use it are still queued is right. Throws Error when the budget is exhausted.
template <class T>
class Scratch {
 public:
  Scratch(const Context& context, std::int64_t count, cudaStream_t stream);
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  T* data() const { return data_; }
  operator T*() const { return data_; }  // NOLINT(google-explicit-constructor): a pointer wherever a kernel wants one

 private:
  const Context* context_;
  T* data_;
  std::uint64_t bytes_;
  cudaStream_t stream_;
};

void* allocate_scratch(const Context& context, std::uint64_t bytes, cudaStream_t stream);
void free_scratch(const Context& context, void* data, std::uint64_t bytes, cudaStream_t stream) noexcept;

template <class T>
Scratch<T>::Scratch(const Context& context, std::int64_t count, cudaStream_t stream)
    : context_(&context), bytes_(static_cast<std::uint64_t>(count) * sizeof(T)), stream_(stream) {
  data_ = static_cast<T*>(allocate_scratch(context, bytes_, stream));
}
template <class T>
Scratch<T>::~Scratch() {
  free_scratch(*context_, data_, bytes_, stream_);
}

// Host memory to the device. The memory may be changed or freed on return; little of it travels with the commands of
// the stream, so that nobody waits, and for more the caller waits until it is there.
void upload(const Context& context, void* device, const void* host, std::uint64_t bytes, cudaStream_t stream);

// The store as kernels see it. Every block must be pinned (else std::logic_error: staged stores are read by copies from
// the host, see pinned()). The table is uploaded the first time that a view is seen and kept for many views to come. A
// store without blocks has null tables. Thread-safe.
DeviceStore on_device(const Context& context, const offload::LayerView& view, cudaStream_t stream);

// Whether the device can read all blocks of the view in place. When it cannot, rows and columns are gathered by host
// threads into a pinned ring and copied (`--kv-host staged`).
bool pinned(const Context& context, const offload::LayerView& view);

// `after` waits for everything queued on `before` so far; nobody waits on the host.
void order(const Context& context, cudaStream_t before, cudaStream_t after);

}  // namespace hayloft::gpu::cuda
