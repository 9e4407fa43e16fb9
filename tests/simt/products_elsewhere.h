#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/make_backend.h"
#include "tests/simt/device/runtime.h"

namespace hayloft::simt {

// The CUDA backend on the double, but for what multiplies matrices, which the CPU backend does: the double's device
// memory is ordinary memory. Real models decode on it in seconds a token instead of minutes, and attention, its caches
// and what crosses the link are the CUDA backend's.
class ProductsElsewhere final : public gpu::Backend {
 public:
  ProductsElsewhere(const offload::Threads& threads, const gpu::CudaOptions& options)
      : cuda_(gpu::make_cuda_backend(threads, options)), cpu_(gpu::make_cpu_backend(threads)) {}

  std::string name() const override { return cuda_->name(); }
  std::string description() const override { return cuda_->description(); }
  const offload::Threads& threads() const override { return cuda_->threads(); }
  std::shared_ptr<offload::ChunkListener> pinning() override { return cuda_->pinning(); }
  gpu::DeviceMemory memory() const override { return cuda_->memory(); }
  std::uint64_t scratch_bytes(const gpu::ScratchShape& shape) const override { return cuda_->scratch_bytes(shape); }
  bool keeps_reads() const override { return cuda_->keeps_reads(); }
  gpu::HotReads hot_reads(const gpu::CacheView& cache, gpu::Stream s) override { return cuda_->hot_reads(cache, s); }
  void warm(const gpu::CacheView& cache, const gpu::HotReads& hot, gpu::Stream s) override {
    cuda_->warm(cache, hot, s);
  }

  gpu::Stream stream() override { return cuda_->stream(); }
  gpu::Stream load_stream() override { return cuda_->load_stream(); }
  gpu::Stream spill_stream() override { return cuda_->spill_stream(); }
  void order(gpu::Stream before, gpu::Stream after) override { cuda_->order(before, after); }
  gpu::Buffer allocate(std::uint64_t bytes, gpu::Stream s) override { return cuda_->allocate(bytes, s); }
  gpu::Buffer allocate_weights(std::uint64_t bytes, gpu::Stream s) override {
    return cuda_->allocate_weights(bytes, s);
  }
  void to_device(void* device, const void* host, std::uint64_t bytes, gpu::Stream s) override {
    cuda_->to_device(device, host, bytes, s);
  }
  void to_host(void* host, const void* device, std::uint64_t bytes, gpu::Stream s) override {
    cuda_->to_host(host, device, bytes, s);
  }
  void copy(void* to, const void* from, std::uint64_t bytes, gpu::Stream s) override {
    cuda_->copy(to, from, bytes, s);
  }
  void synchronize(gpu::Stream s) override { cuda_->synchronize(s); }

  void embed(const gpu::Matrix& table, const std::int32_t* tokens, int T, float* out, gpu::Stream s) override {
    const std::vector<std::int32_t> ids(tokens, tokens + T);
    queue(s, [=, this] { cpu_->embed(table, ids.data(), T, out, {}); });
  }
  bool multiplies_packed() const override { return true; }
  void matmul(const float* x, int T, const gpu::Matrix& w, const float* bias, float* y, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->matmul(x, T, w, bias, y, {}); });
  }
  void rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->rms_norm(x, rows, n, weight, eps, y, {}); });
  }
  void add(float* y, const float* x, std::int64_t n, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->add(y, x, n, {}); });
  }
  void scale(float* x, std::int64_t n, float factor, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->scale(x, n, factor, {}); });
  }
  void silu_mul(float* gate, const float* up, std::int64_t n, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->silu_mul(gate, up, n, {}); });
  }
  void sigmoid_mul(float* x, const float* gate, std::int64_t n, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->sigmoid_mul(x, gate, n, {}); });
  }
  void gelu_mul(float* gate, const float* up, std::int64_t n, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->gelu_mul(gate, up, n, {}); });
  }
  void soft_cap(float* x, std::int64_t n, float cap, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->soft_cap(x, n, cap, {}); });
  }
  void clamped_mul(float* gate, const float* up, std::int64_t n, float limit, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->clamped_mul(gate, up, n, limit, {}); });
  }
  void flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->flag_nonfinite(x, n, tag, flag, {}); });
  }
  void rope(float* x, int T, int heads, int d, std::int64_t position, const gpu::Rope& rope, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->rope(x, T, heads, d, position, rope, {}); });
  }
  void top_values(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->top_values(x, n, k, ids, values, {}); });
    cuda_->synchronize(s);
  }

  void append(const gpu::CacheView& cache, const float* k, const float* v, int T, gpu::Stream s) override {
    cuda_->append(cache, k, v, T, s);
  }
  void spill(const gpu::CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
             gpu::Stream s) override {
    cuda_->spill(cache, tokens, layout, block, s);
  }
  void gated_delta(const gpu::DeltaLayer& layer, const gpu::DeltaState& state, float* inputs, const float* a,
                   const float* b, const float* gate, int T, float* out, gpu::Stream s) override {
    queue(s, [=, this] { cpu_->gated_delta(layer, state, inputs, a, b, gate, T, out, {}); });
  }
  void attend_causal(const gpu::CacheView& cache, const float* q, int T, int query_heads,
                     const gpu::CausalWindow& window, float* out, gpu::Stream s) override {
    cuda_->attend_causal(cache, q, T, query_heads, window, out, s);
  }
  void attend_causal_sparse(const gpu::CacheView& cache, const float* q, int T, int query_heads,
                            const gpu::SparseCausal& how, float* out, gpu::SparseRead& read, gpu::Stream s) override {
    cuda_->attend_causal_sparse(cache, q, T, query_heads, how, out, read, s);
  }
  void attend(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::Attended& what, float* out,
              gpu::Stream s) override {
    cuda_->attend(cache, q, query_heads, what, out, s);
  }
  void select_sparq(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::SparqSelect& args,
                    std::int32_t* positions, float* alpha, gpu::Stream s) override {
    cuda_->select_sparq(cache, q, query_heads, args, positions, alpha, s);
  }
  void fetch_ahead(const gpu::CacheView& next, gpu::Stream s) override { cuda_->fetch_ahead(next, s); }

 protected:
  void release(void*, std::uint64_t, gpu::Stream) noexcept override {}  // buffers are cuda_'s

 private:
  // Device memory may be touched by what streams do, and by nobody else.
  static void queue(gpu::Stream stream, std::function<void()> run) {
    Runtime& runtime = Runtime::instance();
    const std::lock_guard lock(runtime.mutex);
    runtime.queue(static_cast<cudaStream_t>(stream.handle), std::move(run));
  }

  std::unique_ptr<gpu::Backend> cuda_;
  std::unique_ptr<gpu::Backend> cpu_;
};

}  // namespace hayloft::simt
