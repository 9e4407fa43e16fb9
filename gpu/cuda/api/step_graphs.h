#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/cuda/api/check.h"
#include "gpu/step.h"

namespace hayloft::gpu::cuda {

// Holds back the kernels of a step of decoding on one stream and gives them to the device several at a time, as graphs,
// which it works through with less time between two kernels and which cost the host one call. A graph is made when the
// same kernels come the second time at the same place of a step; from then on those of its kernels whose arguments or
// grids have changed are told so. The first parts of a step are short, so that the device begins at once, and each
// further one is twice as long, while it has those before to do.
//
// All else that is queued on the stream comes behind what is held, whoever queues it: kernels come through launch()
// (gpu/cuda/kernels/launch.h), which knows, and whoever calls CUDA with a stream otherwise says in_order(stream).
//
// If a kernel that was held cannot be launched, those held behind it are dropped, and every further operation of their
// step throws. Notes of what they were to leave are wrong then: who keeps some for later steps asks LostLaunches.
//
// Thread-safe. It holds kernels of one thread at a time. All of a process are in one list, because a stream is all that
// most calls of CUDA are given.
class StepGraphs {
 public:
  // With `on` false nothing is ever held.
  StepGraphs(int device, cudaStream_t stream, bool on);
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Returns null where the calling thread is in a step already, or nothing is to be held.
  std::unique_ptr<Step> begin();

  // Returns the one that holds what the calling thread launches on this stream; null where it is not in a step.
  static StepGraphs* of_step(cudaStream_t stream);
  // Launch what is held of any thread on this stream, or on every one where that is null. Only the thread whose step it
  // is learns what goes wrong: launch_held() throws it there, as does whatever the step does next.
  static void launch_held(cudaStream_t stream);
  static void launch_held_quietly(cudaStream_t stream) noexcept;

  std::uint64_t lost() const { return lost_; }  // how many times a launch of what was held has failed

  // Holds a kernel of the calling thread, behind those that are held. Throws Error where one before could not be
  // launched.
  template <class... Parameters>
  void add(const char* name, void (*kernel)(Parameters...), const cudaLaunchConfig_t& config,
           const std::remove_cv_t<Parameters>&... arguments) {
    const std::lock_guard lock(mutex_);
    take();
    const std::size_t first = held_.offsets.size();
    (held_.push(arguments), ...);
    held_.kernels.push_back({name, reinterpret_cast<const void*>(kernel), config.gridDim, config.blockDim,
                             config.dynamicSmemBytes, first, sizeof...(Parameters), &launch_by<Parameters...>});
    if (held_.kernels.size() >= most_kernels) flush();
  }

 private:
  static constexpr std::size_t most_kernels = 256;  // that are held

  class Held;

  struct Kernel {
    const char* name;
    const void* function;
    dim3 blocks, threads;
    std::size_t shared_bytes;
    std::size_t first_argument;
    std::size_t arguments;
    cudaError_t (*launch)(const cudaLaunchConfig_t& config, const void* function, void* const* arguments);
  };
  // Has kernels in their order, and the bytes of their arguments.
  struct Kernels {
    std::vector<Kernel> kernels;
    std::vector<std::size_t> offsets;  // of all arguments, in `bytes`
    std::vector<std::byte> bytes;

    template <class T>
    void push(const T& argument) {
      static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::max_align_t));
      const std::size_t at = (bytes.size() + alignof(T) - 1) / alignof(T) * alignof(T);
      bytes.resize(at + sizeof(T));
      std::memcpy(bytes.data() + at, &argument, sizeof(T));
      offsets.push_back(at);
    }
    void clear();
    // Returns where the arguments of a kernel begin; of the one behind the last, where they end.
    std::size_t begin_of(std::size_t kernel) const;
    std::vector<void*> pointers(const Kernel& kernel);
    bool same_functions(const Kernels& other) const;
    bool same_arguments(std::size_t kernel, const Kernels& other) const;
  };
  struct Graph {
    Kernels last;  // as they were launched last
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;  // null: the kernels have been seen, and were launched one by one
    std::vector<cudaGraphNode_t> nodes;
    bool refused = false;  // by the driver
    std::uint64_t used = 0;
  };

  template <class... Parameters>
  static cudaError_t launch_by(const cudaLaunchConfig_t& config, const void* function, void* const* arguments) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return cudaLaunchKernelEx(&config, reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(function)),
                                *static_cast<const std::remove_cv_t<Parameters>*>(arguments[i])...);
    }
    (std::index_sequence_for<Parameters...>());
  }

  void take();
  void part_ends(Held& of, bool all);
  void end(Held& of) noexcept;
  void flush() noexcept;
  Graph& graph_of_held();
  bool make(Graph& graph);
  bool update(Graph& graph);
  bool launched_as_graph();
  void launch_each();
  static cudaKernelNodeParams node_of(const Kernel& kernel, std::vector<void*>& arguments);
  static void destroy(Graph& graph) noexcept;

  static inline thread_local Held* step_ = nullptr;  // that the calling thread is in
  static inline std::atomic<int> holding_ = 0;       // how many hold anything
  static inline std::mutex all_mutex_;               // guards the next
  static inline std::vector<StepGraphs*> all_;       // of this process, one for each backend

  const int device_;
  const cudaStream_t stream_;
  const bool on_;
  std::atomic<std::uint64_t> lost_ = 0;
  std::mutex mutex_;  // guards all below
  Kernels held_;
  Held* owner_ = nullptr;                          // the step of what is held
  std::unordered_map<std::size_t, Graph> graphs_;  // by kernels and place
  std::uint64_t uses_ = 0;
};

// Tells who notes what kernels are to leave, whether some have been lost since it asked last.
class LostLaunches {
 public:
  explicit LostLaunches(const StepGraphs& graphs) : graphs_(graphs) {}
  bool any() {
    const std::uint64_t now = graphs_.lost();
    return std::exchange(seen_, now) != now;
  }

 private:
  const StepGraphs& graphs_;
  std::uint64_t seen_ = 0;
};

// Return the stream with nothing held back, so that whatever is queued on it comes behind all that was before.
inline cudaStream_t in_order(cudaStream_t stream) {
  StepGraphs::launch_held(stream);
  return stream;
}
inline cudaStream_t in_order_quietly(cudaStream_t stream) noexcept {
  StepGraphs::launch_held_quietly(stream);
  return stream;
}

}  // namespace hayloft::gpu::cuda
