#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simt/device/control.h"
#include "tests/simt/device/memory.h"
#include "tests/simt/device/pool.h"

// The state behind the API. The functions of cuda_runtime.h and cublas_v2.h enter through api(), which locks it.
namespace hayloft::simt {

// One cudaEventRecord: done when its stream has come past it.
struct Record {
  bool done = false;
  double milliseconds = 0;  // when, on the runtime's own clock
};

// See spoil_copies().
struct Spoiled {
  cudaMemcpyKind kind = cudaMemcpyHostToDevice;
  std::size_t least = 1;
  std::size_t most = 0;  // below `least`: none are
};

struct Operation {
  std::function<void()> run;      // may be empty
  std::shared_ptr<Record> after;  // runs only when this is done; null: at any time
  bool frees = false;             // runs even when the queue is dropped
  const void* kernel = nullptr;   // that it runs, if it runs one
};

}  // namespace hayloft::simt

struct CUstream_st {
  int device = 0;
  std::deque<hayloft::simt::Operation> queue;
};

struct CUevent_st {
  int device = 0;
  std::shared_ptr<hayloft::simt::Record> latest;
  bool timing = true;
};

namespace hayloft::simt {

class Runtime {
 public:
  static Runtime& instance();

  // Counts the call; what it fails with before it has begun: an injected fault or a sticky error.
  cudaError_t enter(const char* function);
  cublasStatus_t enter_cublas(const char* function);
  void note(cudaError_t error);  // for cudaGetLastError, and to be kept for good where it is of that kind

  // An operation behind all others of the stream.
  void queue(cudaStream_t stream, std::function<void()> run);
  void queue_free(cudaStream_t stream, void* data);
  void queue_kernel(cudaStream_t stream, const void* kernel, std::function<void()> run);
  bool held() const;  // whether a kernel that holds its stream waits or runs
  // Runs operations of any streams until `done`. Returns the sticky error.
  cudaError_t wait(const std::function<bool()>& done);
  cudaError_t wait(cudaStream_t stream);  // until its queue is empty
  cudaError_t wait_all();
  bool run_one();  // false: none can run

  // One of the calling thread's device.
  bool known(cudaStream_t stream) const { return stream && streams_.count(stream) > 0 && stream->device == current(); }
  static int& current();       // the calling thread's device
  std::uint64_t left() const;  // memory of that device which is not taken, by pools neither
  cudaStream_t create_stream();
  void destroy_stream(cudaStream_t stream);

  void reset(std::uint64_t seed);
  void kernel_failed(const std::string& message);

  std::recursive_mutex mutex;
  Memory memory;
  Device device;
  std::uint64_t seed = 1;
  std::mt19937_64 random{1};
  cudaError_t last_error = cudaSuccess;
  cudaError_t sticky = cudaSuccess;
  std::string failure;
  std::map<std::string, std::int64_t, std::less<>> calls;
  std::map<std::pair<std::string, std::int64_t>, int, std::less<>> faults;  // (function, call) to error
  std::int64_t host_waits = 0;
  std::uint64_t copied_to_host = 0;
  std::uint64_t copied_to_device = 0;
  std::map<int, std::int64_t> uses;  // by device
  std::map<cudaDataType, std::int64_t> products;
  std::map<void*, std::pair<std::shared_ptr<PoolMemory>, std::uint64_t>> pooled;  // what came from pools
  std::map<int, std::uint64_t> pooled_bytes;                                      // by device, until they are released
  std::vector<std::weak_ptr<PoolMemory>> pools;                                   // all that were ever made
  std::int64_t pool_growths = 0;
  std::unordered_map<const void*, std::int64_t> launches;      // by kernel
  std::unordered_map<const void*, std::size_t> shared_limits;  // by kernel, once raised
  std::unordered_map<const void*, BindKernel> binders;         // of kernels that were launched
  Spoiled spoiled;
  std::string holding;  // part of the names of kernels that hold their streams; empty: there are none

 private:
  bool runnable(cudaStream_t stream) const;
  cudaStream_t pick();
  int fault(const char* function);
  void drop_queues();

  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams_;
  std::vector<cudaStream_t> order_;   // of creation: seeds mean the same in every process
  cudaStream_t favourite_ = nullptr;  // runs ahead until the dice fall otherwise
};

// Queues a kernel, or says what CUDA would refuse.
cudaError_t queue_bound(Runtime& runtime, const cudaLaunchConfig_t& config, const void* kernel, BoundKernel bound);

template <class Body>
cudaError_t api(const char* function, Body&& body) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  cudaError_t error = runtime.enter(function);
  try {
    if (error == cudaSuccess) error = body(runtime);
  } catch (const std::out_of_range&) {  // of Memory::place()
    error = cudaErrorInvalidValue;
  }
  runtime.note(error);
  return error;
}

// For what gives something back: that is done even when the call fails, as it is when the process ends, so that a test
// of failures leaks nothing.
template <class Body>
cudaError_t give_back(const char* function, Body&& body) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  const cudaError_t entered = runtime.enter(function);
  const cudaError_t done = body(runtime);
  const cudaError_t error = entered != cudaSuccess ? entered : done;
  runtime.note(error);
  return error;
}

// Device memory may be touched while this lives.
class Opened {
 public:
  explicit Opened(Memory& memory) : memory_(memory) { memory_.open(); }
  ~Opened() { memory_.close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  Memory& memory_;
};

}  // namespace hayloft::simt
