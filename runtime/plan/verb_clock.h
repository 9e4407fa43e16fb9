#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/backend.h"

namespace hayloft::runtime::plan {

// A backend that passes every verb on and notes how long each of the attention verbs takes, waiting for it. Not
// thread-safe; the backend must outlive it.
class VerbClock : public gpu::Backend {
 public:
  explicit VerbClock(gpu::Backend& inner) : inner_(inner) {}

  const std::map<std::string, double>& seconds() const { return seconds_; }  // by verb, since construction

  std::string name() const override { return inner_.name(); }
  std::string description() const override { return inner_.description(); }
  const offload::Threads& threads() const override { return inner_.threads(); }
  std::shared_ptr<offload::ChunkListener> pinning() override { return inner_.pinning(); }
  gpu::DeviceMemory memory() const override { return inner_.memory(); }
  void time_stages(bool on) override { inner_.time_stages(on); }
  std::vector<gpu::StageTime> stage_times() override { return inner_.stage_times(); }
  gpu::Stream stream() override { return inner_.stream(); }
  gpu::Stream load_stream() override { return inner_.load_stream(); }
  gpu::Stream spill_stream() override { return inner_.spill_stream(); }
  void order(gpu::Stream before, gpu::Stream after) override { inner_.order(before, after); }
  gpu::Buffer allocate(std::uint64_t bytes, gpu::Stream stream) override { return inner_.allocate(bytes, stream); }
  void to_device(void* device, const void* host, std::uint64_t bytes, gpu::Stream stream) override {
    inner_.to_device(device, host, bytes, stream);
  }
  void to_host(void* host, const void* device, std::uint64_t bytes, gpu::Stream stream) override {
    inner_.to_host(host, device, bytes, stream);
  }
  std::shared_ptr<std::byte> host_memory(std::uint64_t bytes) override { return inner_.host_memory(bytes); }
  void queue_to_device(void* device, const void* host, std::uint64_t bytes, gpu::Stream stream) override {
    inner_.queue_to_device(device, host, bytes, stream);
  }
  void queue_to_host(void* host, const void* device, std::uint64_t bytes, gpu::Stream stream) override {
    inner_.queue_to_host(host, device, bytes, stream);
  }
  void copy(void* to, const void* from, std::uint64_t bytes, gpu::Stream stream) override {
    inner_.copy(to, from, bytes, stream);
  }
  void synchronize(gpu::Stream stream) override { inner_.synchronize(stream); }

  void embed(const gpu::Matrix& table, const std::int32_t* tokens, int T, float* out, gpu::Stream stream) override {
    inner_.embed(table, tokens, T, out, stream);
  }
  gpu::DType settle_weights(void* w, gpu::DType type, std::int64_t n, gpu::Stream stream) override {
    return inner_.settle_weights(w, type, n, stream);
  }
  void matmul(const float* x, int T, const gpu::Matrix& w, const float* bias, float* y, gpu::Stream stream) override {
    inner_.matmul(x, T, w, bias, y, stream);
  }
  void rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y,
                gpu::Stream stream) override {
    inner_.rms_norm(x, rows, n, weight, eps, y, stream);
  }
  void add(float* y, const float* x, std::int64_t n, gpu::Stream stream) override { inner_.add(y, x, n, stream); }
  void silu_mul(float* gate, const float* up, std::int64_t n, gpu::Stream stream) override {
    inner_.silu_mul(gate, up, n, stream);
  }
  void flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag,
                      gpu::Stream stream) override {
    inner_.flag_nonfinite(x, n, tag, flag, stream);
  }
  void rope(float* x, int T, int heads, int d, std::int64_t position, const gpu::Rope& rope,
            gpu::Stream stream) override {
    inner_.rope(x, T, heads, d, position, rope, stream);
  }
  void top_values(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values,
                  gpu::Stream stream) override {
    inner_.top_values(x, n, k, ids, values, stream);
  }
  void append(const gpu::CacheView& cache, const float* k, const float* v, int T, gpu::Stream stream) override {
    inner_.append(cache, k, v, T, stream);
  }
  void spill(const gpu::CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
             gpu::Stream stream) override {
    inner_.spill(cache, tokens, layout, block, stream);
  }

  void attend_causal(const gpu::CacheView& cache, const float* q, int T, int query_heads,
                     const gpu::CausalWindow& window, float* out, gpu::Stream stream) override;
  void attend(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::Attended& what, float* out,
              gpu::Stream stream) override;
  void select_sparq(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::SparqSelect& args,
                    std::int32_t* positions, float* alpha, gpu::Stream stream) override;
  void select_exact(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::ExactSelect& args,
                    std::int32_t* positions, gpu::Stream stream) override;

 private:
  template <class Verb>
  void time(const char* name, gpu::Stream stream, const Verb& verb);
  void release(void*, std::uint64_t, gpu::Stream) noexcept override {}  // buffers belong to the inner backend

  gpu::Backend& inner_;
  std::map<std::string, double> seconds_;
};

}  // namespace hayloft::runtime::plan
