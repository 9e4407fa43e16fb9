#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "gpu/cuda/cublas.cuh"
#include "gpu/cuda/device.cuh"
#include "gpu/cuda/device_arena.cuh"
#include "gpu/cuda/host_pins.cuh"
#include "gpu/cuda/refuse.h"
#include "gpu/cuda/spill_image.cuh"
#include "gpu/cuda/stage_clock.cuh"
#include "gpu/cuda/staging.cuh"
#include "gpu/cuda/store_tables.cuh"
#include "gpu/cuda/stream.cuh"
#include "gpu/cuda/verbs.cuh"
#include "gpu/device_plan.h"
#include "gpu/make_backend.h"
#include "offload/format.h"

namespace hayloft::gpu {
namespace cuda {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeastBytes = 1024 * kMiB;  // of --gpu-memory
// Left to others, and to kernels and cuBLAS' code that are loaded later, when nobody says how much to take.
constexpr std::uint64_t kSpareBytes = 512 * kMiB;
constexpr std::uint64_t kPieceBytes = 8 * kMiB;  // of the staging ring: long enough for the link's full rate
constexpr int kPieces = 4;
constexpr std::uint64_t kMoveBytes = 4 * kMiB;  // of an overlapping copy at a time

// The first of the devices that CUDA_VISIBLE_DEVICES leaves.
int open_device() {
  require_device();
  constexpr int device = 0;
  HAYLOFT_CUDA(cudaSetDevice(device));
  if (!attribute(cudaDevAttrMemoryPoolsSupported, device) || !attribute(cudaDevAttrCanMapHostMemory, device)) {
    refuse(
        "--device cuda: this device, or its driver, has no memory pools or cannot map host memory, as some virtual "
        "GPUs; use --device cpu");
  }
  return device;
}

std::uint64_t arena_budget(std::uint64_t asked) {
  std::size_t free = 0, total = 0;
  HAYLOFT_CUDA(cudaMemGetInfo(&free, &total));  // with the context counted as taken
  if (asked == 0) return free - std::min<std::uint64_t>(kSpareBytes, free / 8);
  if (asked < kLeastBytes) {
    refuse("--gpu-memory ", format_bytes(asked), ": must be at least ", format_bytes(kLeastBytes),
           ", of which CUDA itself takes up to ", format_bytes(cuda_context_bytes));
  }
  if (asked - cuda_context_bytes > free) {
    refuse("--gpu-memory ", format_bytes(asked), ": the device has ", format_bytes(free), " free of ",
           format_bytes(total), "; lower it, or end what else uses the device");
  }
  return asked - cuda_context_bytes;
}

std::string describe(int device, std::uint64_t budget) {
  cudaDeviceProp properties{};
  HAYLOFT_CUDA(cudaGetDeviceProperties(&properties, device));
  std::ostringstream text;
  text << properties.name;
  if (const std::string address = bus_address(device); !address.empty()) text << " at " << address;
  text << ", compute capability " << properties.major << "." << properties.minor << ", "
       << properties.multiProcessorCount << " multiprocessors, " << format_bytes(properties.totalGlobalMem)
       << ", of which " << format_bytes(budget) << " may be used";
  return text.str();
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const offload::Threads& threads, const CudaOptions& options)
      : threads_(threads),
        device_(open_device()),
        arena_(device_, arena_budget(options.memory_bytes)),
        pins_(std::make_shared<HostPins>(options.kv_host, device_, threads, options.on_warning)),
        staging_(kPieceBytes, kPieces),
        context_(context(options)),
        spill_image_(context_, spills_),
        workspace_(context_, cuda_workspace_bytes, compute_),
        cublas_(compute_, workspace_, cuda_workspace_bytes),
        tables_(context_) {
    arena_.when_short([this](std::uint64_t bytes) { tables_.spare(bytes); });
  }
  ~CudaBackend() override {  // what is still queued may use anything below
    cudaStreamSynchronize(copies_);
    cudaStreamSynchronize(spills_);
    cudaStreamSynchronize(compute_);
  }

  std::string name() const override { return "cuda"; }
  std::string description() const override { return describe(device_, arena_.budget_bytes()); }
  const offload::Threads& threads() const override { return threads_; }

  std::shared_ptr<offload::ChunkListener> pinning() override { return pins_; }
  DeviceMemory memory() const override {
    return {arena_.budget_bytes(), arena_.used_bytes(), arena_.peak_bytes(), arena_.driver_peak_bytes(),
            cuda_context_bytes};
  }
  std::uint64_t scratch_bytes(const ScratchShape& shape) const override { return cuda_scratch_bytes(shape); }
  void time_stages(bool on_or_off) override { stages_.run(on_or_off); }
  std::vector<StageTime> stage_times() override { return stages_.times(); }

  Stream stream() override { return {compute_}; }
  Stream load_stream() override { return {copies_}; }
  Stream spill_stream() override { return {spills_}; }
  void order(Stream before, Stream after) override { cuda::order(context_, on(before), on(after)); }

  Buffer allocate(std::uint64_t bytes, Stream stream) override {
    return Buffer(this, arena_.allocate(bytes, on(stream)), bytes, stream);
  }
  void to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) override {
    upload(context_, device, host, bytes, on(stream));
  }
  void to_host(void* host, const void* device, std::uint64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on(stream)), "cudaMemcpyAsync", bytes);
    synchronize(stream);
  }
  std::shared_ptr<std::byte> host_memory(std::uint64_t bytes) override { return cuda::host_memory(context_, bytes); }
  void queue_to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, on(stream)), "cudaMemcpyAsync", bytes);
  }
  void queue_to_host(void* host, const void* device, std::uint64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on(stream)), "cudaMemcpyAsync", bytes);
  }
  void copy(void* to, const void* from, std::uint64_t bytes, Stream stream) override {
    const auto target = reinterpret_cast<std::uintptr_t>(to), source = reinterpret_cast<std::uintptr_t>(from);
    const std::uint64_t distance = target < source ? source - target : target - source;
    if (bytes == 0 || distance == 0) return;
    if (distance >= bytes) return queue_copy(to, from, bytes, on(stream));
    // CUDA leaves open what an overlapping copy does. By way of a third place, piece by piece, each before its source
    // is overwritten.
    const std::uint64_t most = std::min(bytes, kMoveBytes);
    const Scratch<std::byte> between(context_, static_cast<std::int64_t>(most), on(stream));
    for (std::uint64_t done = 0; done < bytes;) {
      const std::uint64_t part = std::min(most, bytes - done);
      const std::uint64_t at = target < source ? done : bytes - done - part;
      queue_copy(between, static_cast<const std::byte*>(from) + at, part, on(stream));
      queue_copy(static_cast<std::byte*>(to) + at, between, part, on(stream));
      done += part;
    }
  }
  void synchronize(Stream stream) override { HAYLOFT_CUDA(cudaStreamSynchronize(on(stream))); }

  void embed(const Matrix& table, const std::int32_t* tokens, int T, float* out, Stream stream) override {
    cuda::embed(context_, table, tokens, T, out, on(stream));
  }
  DType convert_weights(void* w, DType type, std::int64_t n, Stream stream) override {
    return cuda::convert_weights(context_, w, type, n, on(stream));
  }
  void matmul(const float* x, int T, const Matrix& w, const float* bias, float* y, Stream stream) override {
    cuda::matmul(context_, x, T, w, bias, y, on(stream));
  }
  void rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, Stream stream) override {
    cuda::rms_norm(context_, x, rows, n, weight, eps, y, on(stream));
  }
  void add(float* y, const float* x, std::int64_t n, Stream stream) override {
    cuda::add(context_, y, x, n, on(stream));
  }
  void silu_mul(float* gate, const float* up, std::int64_t n, Stream stream) override {
    cuda::silu_mul(context_, gate, up, n, on(stream));
  }
  void flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag, Stream stream) override {
    cuda::flag_nonfinite(context_, x, n, tag, flag, on(stream));
  }
  void rope(float* x, int T, int heads, int d, std::int64_t position, const Rope& rope, Stream stream) override {
    cuda::rope(context_, x, T, heads, d, position, rope, on(stream));
  }

  void top_values(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values, Stream stream) override {
    cuda::top_values(context_, x, n, k, ids, values, on(stream));
  }

  void append(const CacheView& cache, const float* k, const float* v, int T, Stream stream) override {
    cuda::append(context_, cache, k, v, T, on(stream));
  }
  void spill(const CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
             Stream stream) override {
    cuda::spill(context_, cache, tokens, layout, block, on(stream));
  }
  void attend_causal(const CacheView& cache, const float* q, int T, int query_heads, const CausalWindow& window,
                     float* out, Stream stream) override {
    cuda::attend_causal(context_, cache, q, T, query_heads, window, out, on(stream));
  }
  void attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
              Stream stream) override {
    cuda::attend(context_, cache, q, query_heads, what, out, on(stream));
  }
  void select_sparq(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                    std::int32_t* positions, float* alpha, Stream stream) override {
    cuda::select_sparq(context_, cache, q, query_heads, args, positions, alpha, on(stream));
  }

 private:
  Context context(const CudaOptions& options) {
    Context context;
    context.device = device_;
    context.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device_);
    context.shared_bytes = static_cast<unsigned>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device_));
    context.bf16_products = attribute(cudaDevAttrComputeCapabilityMajor, device_) >= 8;
    context.link = options.link;
    for (Link* link : {&context.link.f16, &context.link.int8, &context.link.int4}) {
      if (*link == Link::automatic) *link = Link::sm;
    }
    context.least_copy_bytes = options.least_copy_bytes;
    context.pin_host = options.kv_host == KvHost::automatic || options.kv_host == KvHost::pinned;
    context.compute = compute_;
    context.copies = copies_;
    context.arena = &arena_;
    context.pins = pins_.get();
    context.tables = &tables_;
    context.staging = &staging_;
    context.spill_image = &spill_image_;
    context.crossing = &crossing_;
    context.cublas = &cublas_;
    context.stages = &stages_;
    context.threads = &threads_;
    return context;
  }

  cudaStream_t on(Stream stream) const { return stream.handle ? native(stream) : compute_; }

  static void queue_copy(void* to, const void* from, std::uint64_t bytes, cudaStream_t stream) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync", bytes);
  }

  void release(void* data, std::uint64_t bytes, Stream stream) noexcept override {
    arena_.free(data, bytes, on(stream));
  }

  // In the order in which later ones need earlier ones.
  const offload::Threads& threads_;
  const int device_;
  OwnedStream compute_;
  OwnedStream copies_;
  OwnedStream spills_;
  Crossing crossing_;
  StageClock stages_;
  DeviceArena arena_;
  const std::shared_ptr<HostPins> pins_;  // shared with the arenas that pin through it, which may live longer
  StagingRing staging_;
  const Context context_;
  SpillImage spill_image_;
  const Scratch<std::byte> workspace_;
  Cublas cublas_;
  StoreTables tables_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend(const offload::Threads& threads, const CudaOptions& options) {
  return std::make_unique<cuda::CudaBackend>(threads, options);
}

}  // namespace hayloft::gpu
