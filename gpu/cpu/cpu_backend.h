#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "gpu/cpu/stage_clock.h"

namespace hayloft::gpu {

// The reference and the default. Its device memory is ordinary memory, and every operation is done on return. An
// operation that is more than a loop is in the file of its name. Threads do not change a bit of any result: work is cut
// into pieces of a fixed size, and partial results are merged in their order.
class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const offload::Threads& threads,  // which must outlive it
                      Products products = Products::exact);

  std::string name() const override { return "cpu"; }
  std::string description() const override;
  const offload::Threads& threads() const override { return threads_; }
  void time_stages(bool on) override { stages_.run(on); }
  std::vector<StageTime> stage_times() override { return stages_.times(); }

  Stream stream() override { return {}; }
  Buffer allocate(std::uint64_t bytes, Stream stream) override;
  // Lets small ones share pieces of memory, which lie in huge pages as large ones do.
  Buffer allocate_weights(std::uint64_t bytes, Stream stream) override;
  void to_device(void* device, const void* host, std::uint64_t bytes, Stream) override { move(device, host, bytes); }
  void to_host(void* host, const void* device, std::uint64_t bytes, Stream) override { move(host, device, bytes); }
  void copy(void* to, const void* from, std::uint64_t bytes, Stream) override { move(to, from, bytes); }
  void synchronize(Stream) override {}

  void embed(const Matrix& table, const std::int32_t* tokens, int T, float* out, Stream) override;
  static constexpr int tokens_one_by_one = 8;  // matmul() of so many or fewer sums the products of each by itself
  int tokens_multiplied_as_alone() const override { return tokens_one_by_one; }
  int tokens_verified_at_once(int widest) const override;
  bool multiplies_packed() const override { return true; }
  Products products() const override { return products_; }
  // Few tokens stream the weights once in their own dtype; many pass panels of them that are laid down in f32.
  void matmul(const float* x, int T, const Matrix& w, const float* bias, float* y, Stream) override;
  // The pieces of all of them, by the threads together.
  void multiply_each(std::span<const MatrixProduct> products, Stream) override;
  void gather_rows(const float* x, std::span<const std::int32_t> rows, int cols, float* y, Stream) override;
  void sum_rows(float* x, std::span<const std::int32_t> rows, std::span<const float> weights, int T, int cols, float* y,
                Stream) override;
  void rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, Stream) override;
  void add(float* y, const float* x, std::int64_t n, Stream) override;
  void scale(float* x, std::int64_t n, float factor, Stream) override;
  void silu_mul(float* gate, const float* up, std::int64_t n, Stream) override;
  void sigmoid_mul(float* x, const float* gate, std::int64_t n, Stream) override;
  void gelu_mul(float* gate, const float* up, std::int64_t n, Stream) override;
  void soft_cap(float* x, std::int64_t n, float cap, Stream) override;
  void clamped_mul(float* gate, const float* up, std::int64_t n, float limit, Stream) override;
  void flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag, Stream) override;
  // Angles, sines and cosines are computed in double, once per token for all heads, so a position of a million is as
  // exact as position one.
  void rope(float* x, int T, int heads, int d, std::int64_t position, const Rope& rope, Stream) override;
  void top_values(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values, Stream) override;

  void gated_delta(const DeltaLayer& layer, const DeltaState& state, float* inputs, const float* a, const float* b,
                   const float* gate, int T, float* out, Stream) override;

  void append(const CacheView& cache, const float* k, const float* v, int T, Stream) override;
  void spill(const CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block, Stream) override;
  // Blocks of queries against tiles of keys: two matrix products and one online softmax step per pair, touching only
  // the tiles that hold a visible key, so a window costs O(T * (window + sinks)).
  void attend_causal(const CacheView& cache, const float* q, int T, int query_heads, const CausalWindow& window,
                     float* out, Stream) override;
  void attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
              Stream) override;
  bool attends_in_parts() const override { return true; }
  void attend_causal_sparse(const CacheView& cache, const float* q, int T, int query_heads, const SparseCausal& how,
                            float* out, SparseRead& read, Stream stream) override;
  void attend_causal_part(const CacheView& part, const float* q, int T, int query_heads, std::int64_t first,
                          const SoftmaxPart& partial, float* out, Stream) override;
  // Reads the rows of a range once for all steps that have them in the same blocks.
  void attend_together(std::span<const AttendStep> steps, int query_heads, Stream) override;
  void select_sparq(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                    std::int32_t* positions, float* alpha, Stream) override;

 private:
  static void move(void* to, const void* from, std::uint64_t bytes);
  void release(void* data, std::uint64_t bytes, Stream) noexcept override;

  // Holds several weights, and lasts as long as one of them.
  struct WeightPiece {
    std::byte* data;
    std::uint64_t taken;
    int buffers;
  };

  const offload::Threads& threads_;
  Products products_;
  StageClock stages_;
  std::mutex pieces_mutex_;
  std::vector<WeightPiece> pieces_;  // the last has room, if any does
};

}  // namespace hayloft::gpu
