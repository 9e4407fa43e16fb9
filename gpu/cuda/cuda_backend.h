#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "gpu/cuda/api/cublas.h"
#include "gpu/cuda/api/device.h"
#include "gpu/cuda/api/stage_clock.h"
#include "gpu/cuda/api/step_graphs.h"
#include "gpu/cuda/context.h"
#include "gpu/cuda/memory/ahead_columns.h"
#include "gpu/cuda/memory/column_cache.h"
#include "gpu/cuda/memory/host_pins.h"
#include "gpu/cuda/memory/row_cache.h"
#include "gpu/cuda/memory/spill_image.h"
#include "gpu/cuda/memory/staging_ring.h"
#include "gpu/cuda/memory/store_tables.h"
#include "gpu/cuda_memory.h"
#include "gpu/device_options.h"

namespace hayloft::gpu::cuda {

// Operations are defined in gpu/cuda/kernels/, in the file of their name. All is queued on the stream that they are
// given, but for what gpu/backend.h says is done on return.
class CudaBackend final : public Backend {
 public:
  CudaBackend(const offload::Threads& threads, const CudaOptions& options);
  ~CudaBackend() override;

  std::string name() const override { return "cuda"; }
  std::string description() const override;
  const offload::Threads& threads() const override { return threads_; }

  std::shared_ptr<offload::ChunkListener> pinning() override { return pins_; }
  DeviceMemory memory() const override;
  std::uint64_t scratch_bytes(const ScratchShape& shape) const override;
  bool keeps_reads() const override { return columns_.most_bytes() + rows_.most_bytes() > 0; }
  HotReads hot_reads(const CacheView& cache, Stream queue) override;
  void warm(const CacheView& cache, const HotReads& hot, Stream queue) override;
  void time_stages(bool on) override { stages_.run(on); }
  std::vector<StageTime> stage_times() override { return stages_.times(); }

  Stream stream() override { return {compute_}; }
  Stream load_stream() override { return {copies_}; }
  Stream spill_stream() override { return {spills_}; }
  void order(Stream before, Stream after) override { order_(native(before), native(after)); }
  std::unique_ptr<Step> begin_step(int tokens) override;

  Buffer allocate(std::uint64_t bytes, Stream stream) override;
  Buffer allocate_weights(std::uint64_t bytes, Stream stream) override;
  void to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) override;
  void to_host(void* host, const void* device, std::uint64_t bytes, Stream stream) override;
  void copy(void* to, const void* from, std::uint64_t bytes, Stream stream) override;
  std::shared_ptr<std::byte> host_memory(std::uint64_t bytes) override;
  void queue_to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) override;
  void queue_to_host(void* host, const void* device, std::uint64_t bytes, Stream stream) override;
  void synchronize(Stream stream) override;

  void embed(const Matrix& table, const std::int32_t* tokens, int T, float* out, Stream queue) override;
  DType convert_weights(void* w, DType type, std::int64_t n, Stream queue) override;
  bool multiplies_packed() const override { return true; }
  int tokens_verified_at_once(int /*widest*/) const override { return cuda_tokens_as_alone; }
  void matmul(const float* x, int T, const Matrix& w, const float* bias, float* y, Stream queue) override;
  void multiply_each(std::span<const MatrixProduct> products, Stream queue) override;
  void gather_rows(const float* x, std::span<const std::int32_t> rows, int cols, float* y, Stream queue) override;
  void sum_rows(float* x, std::span<const std::int32_t> rows, std::span<const float> weights, int T, int cols, float* y,
                Stream queue) override;
  void rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, Stream queue) override;
  void add_and_norm(const AddAndNorm& what, Stream queue) override;
  void add(float* y, const float* x, std::int64_t n, Stream queue) override;
  void scale(float* x, std::int64_t n, float factor, Stream queue) override;
  void silu_mul(float* gate, const float* up, std::int64_t n, Stream queue) override;
  void sigmoid_mul(float* x, const float* gate, std::int64_t n, Stream queue) override;
  void gelu_mul(float* gate, const float* up, std::int64_t n, Stream queue) override;
  void soft_cap(float* x, std::int64_t n, float cap, Stream queue) override;
  void clamped_mul(float* gate, const float* up, std::int64_t n, float limit, Stream queue) override;
  void flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag, Stream queue) override;
  void rope(float* x, int T, int heads, int d, std::int64_t position, const Rope& rope, Stream queue) override;
  void top_values(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values, Stream queue) override;

  void append(const CacheView& cache, const float* k, const float* v, int T, Stream queue) override;
  void enter(const CacheView& cache, const NewHeads& heads, Stream queue) override;
  void spill(const CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
             Stream queue) override;
  void gated_delta(const DeltaLayer& layer, const DeltaState& state, float* inputs, const float* a, const float* b,
                   const float* gate, int T, float* out, Stream queue) override;

  void attend_causal(const CacheView& cache, const float* q, int T, int query_heads, const CausalWindow& window,
                     float* out, Stream queue) override;
  void attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
              Stream queue) override;
  void attend_together(std::span<const AttendStep> steps, int query_heads, Stream queue) override;
  bool attends_in_parts() const override { return true; }
  void attend_causal_part(const CacheView& part, const float* q, int T, int query_heads, std::int64_t first,
                          const SoftmaxPart& partial, float* out, Stream queue) override;
  void attend_causal_sparse(const CacheView& cache, const float* q, int T, int query_heads, const SparseCausal& how,
                            float* out, SparseRead& read, Stream queue) override;
  bool searches_in_parts() const override { return true; }
  void select_sparq(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                    std::int32_t* positions, float* alpha, Stream queue) override;
  void fetch_ahead(const CacheView& next, Stream queue) override;
  bool estimates_rest() const override { return true; }
  void attend_with_rest(const CacheView& cache, const float* q, int query_heads, const RestStep& rest, float* out,
                        Stream queue) override;

 private:
  // CUDA's stream, ready to be used by the calling thread: its device is the backend's from here on.
  cudaStream_t native(Stream stream) const {
    HAYLOFT_CUDA(use_device(device_));
    return handle(stream);
  }
  cudaStream_t handle(Stream stream) const {
    return stream.handle ? static_cast<cudaStream_t>(stream.handle) : static_cast<cudaStream_t>(compute_);
  }
  void release(void* data, std::uint64_t bytes, Stream stream) noexcept override;

  // In the order in which later ones need earlier ones.
  const offload::Threads& threads_;
  const int device_;
  const bool pin_host_;  // whether the user wants host memory pinned at all
  OwnedStream compute_;
  OwnedStream copies_;
  OwnedStream spills_;
  StepGraphs graphs_;
  StreamOrder order_;
  StageClock stages_;
  DeviceArena arena_;
  const std::shared_ptr<HostPins> pins_;  // shared with the arenas that pin through it, which may live longer
  StagingRing staging_;
  const Context context_;
  SpillImage spill_image_;
  const Scratch<std::byte> workspace_;
  Cublas cublas_;
  StoreTables tables_;
  AheadColumns ahead_;
  ColumnCache columns_;
  RowCache rows_;
};

}  // namespace hayloft::gpu::cuda
