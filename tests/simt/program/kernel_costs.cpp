#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"

// kernel_costs OPERATION TOKENS FORMAT [ROWS]: runs what one layer of a Llama-3-8B asks of the CUDA backend, once, so
// that the interpreter of PTX can count it (HAYLOFT_PTX_COSTS, tests/simt/ptx/launch.h). scripts/kernel-costs calls it.
//
//   select     SparQ's selection behind TOKENS tokens of the store and the newest 256, r = 16, k = 1024; of planes as
//              many bits as behind the format's name (planes32)
//   strips     a selection of a 1024th of the positions by the bounds of strips, where all scores are equal, so that
//              every strip is listed; its columns come over the link
//   held       the same twice, the second time with columns on the device
//   rest       that selection of 512 positions, and attention to them with 1024 values drawn of the rest
//   rows       attention to 1024 selected rows of TOKENS, and to the newest 256
//   dense      attention to all rows
//   token      the rest of a step: norms, rotation, matrix products, the cache, the largest logits; TOKENS is not used
//   prefill    a chunk of TOKENS tokens, what surrounds its matrix products
namespace hayloft::testing {
namespace {

constexpr int query_heads = 32;
constexpr int kv_heads = 8;
constexpr int head_dim = 128;
constexpr int hidden = query_heads * head_dim;
constexpr int wide = 7 * hidden / 2;
constexpr int vocabulary = 128256;
constexpr int block_tokens = 4096;
constexpr int newest = 256;
constexpr int rank = 16;
constexpr int selected = 1024;

class Layer {
 public:
  Layer(std::int64_t tokens, offload::ColumnFormat format, int bits, offload::RowFormat rows)
      : tokens_(tokens), format_(format), bits_(bits), rows_(rows) {}

  void select() {
    SharedCache cache(*cuda_, shape(tokens_, newest));
    const gpu::Buffer q = query();
    const gpu::Buffer positions = cuda_->allocate(sizeof(std::int32_t) * kv_heads * selected, cuda_->stream());
    const gpu::Buffer alpha = cuda_->allocate(sizeof(float) * query_heads, cuda_->stream());
    gpu::SparqSelect args;
    args.rank = rank;
    args.bits = bits_;
    if (bits_ > 0) args.order = index::ComponentOrder::qk;
    args.k = selected;
    args.limit = tokens_;
    cuda_->select_sparq(cache.on_cuda(), q.as<float>(), query_heads, args, positions.as<std::int32_t>(),
                        alpha.as<float>(), cuda_->stream());
    finish();
  }

  void strips() { select_held(1); }
  void held() { select_held(2); }

  void rest() {
    SharedCache cache(*cuda_, shape(tokens_, newest));
    const gpu::Buffer q = query();
    constexpr int k = selected / 2;
    const gpu::Stream stream = cuda_->stream();
    const gpu::Buffer positions = cuda_->allocate(sizeof(std::int32_t) * kv_heads * k, stream);
    const gpu::Buffer alpha = cuda_->allocate(sizeof(float) * 2 * query_heads, stream);
    const gpu::Buffer out = cuda_->allocate(sizeof(float) * hidden, stream);
    const gpu::Buffer scores =
        cuda_->allocate(sizeof(float) * query_heads * static_cast<std::size_t>(gpu::scores_stride(tokens_)), stream);
    gpu::SparqSelect args;
    args.rank = rank;
    args.bits = bits_;
    if (bits_ > 0) args.order = index::ComponentOrder::qk;
    args.k = k;
    args.limit = tokens_;
    args.scores = scores.as<float>();
    cuda_->select_sparq(cache.on_cuda(), q.as<float>(), query_heads, args, positions.as<std::int32_t>(),
                        alpha.as<float>(), stream);
    gpu::Attended what;
    what.positions = positions.as<std::int32_t>();
    what.lists = kv_heads;
    what.k = k;
    what.ranges[0] = {tokens_, tokens_ + newest};
    gpu::RestStep step{args, what, scores.as<float>()};
    step.draws = true;
    step.drawn = selected;
    step.key = 1;
    step.error = alpha.as<float>();
    step.share = alpha.as<float>() + query_heads;
    cuda_->attend_with_rest(cache.on_cuda(), q.as<float>(), query_heads, step, out.as<float>(), stream);
    finish();
  }

  void rows() {
    SharedCache cache(*cuda_, shape(tokens_, newest));
    std::vector<std::int32_t> scattered;  // of each KV head, evenly over the store
    for (int head = 0; head < kv_heads; ++head) {
      for (int i = 0; i < selected; ++i) {
        scattered.push_back(static_cast<std::int32_t>((i * tokens_ + head) / selected));
      }
    }
    const gpu::Buffer positions = upload(*cuda_, scattered);
    const gpu::Buffer alpha = upload(*cuda_, std::vector<float>(query_heads, 0.5f));
    gpu::Attended what;
    what.positions = positions.as<std::int32_t>();
    what.lists = kv_heads;
    what.k = selected;
    what.ranges[0] = {tokens_, tokens_ + newest};
    what.alpha = alpha.as<float>();
    attend(cache, what);
  }

  void dense() {
    SharedCache cache(*cuda_, shape(tokens_, newest));
    gpu::Attended what;
    what.ranges[0] = {0, tokens_ + newest};
    attend(cache, what);
  }

  void token() {
    const gpu::Stream stream = cuda_->stream();
    const auto floats = [&](std::int64_t n) { return upload(*cuda_, normal(static_cast<std::size_t>(n), 7)); };
    const gpu::Buffer x = floats(hidden), y = floats(wide), up = floats(wide), logits = floats(vocabulary);
    const gpu::Buffer flag = upload(*cuda_, std::vector<std::int32_t>{99});
    const gpu::Rope rope{upload_kept(normal(head_dim / 2, 8)).as<float>()};
    cuda_->rms_norm(x.as<float>(), 1, hidden, x.as<float>(), 1e-5f, y.as<float>(), stream);
    cuda_->rope(x.as<float>(), 1, query_heads, head_dim, tokens_, rope, stream);
    cuda_->add(x.as<float>(), up.as<float>(), hidden, stream);
    cuda_->silu_mul(y.as<float>(), up.as<float>(), wide, stream);
    cuda_->flag_nonfinite(x.as<float>(), hidden, 1, flag.as<std::int32_t>(), stream);
    for (const gpu::DType type : {gpu::DType::f32, gpu::DType::f16, gpu::DType::bf16}) {
      const gpu::Buffer w = floats(std::int64_t{256} * hidden);  // of any type: small numbers, or none
      const gpu::Matrix matrix{w.as<void>(), type, 256, hidden};
      const std::int32_t id = 3;
      cuda_->embed(matrix, &id, 1, y.as<float>(), stream);
      cuda_->matmul(x.as<float>(), 1, matrix, nullptr, y.as<float>(), stream);
    }
    std::vector<std::int32_t> ids(40);
    std::vector<float> values(40);
    cuda_->top_values(logits.as<float>(), vocabulary, 40, ids.data(), values.data(), stream);
    append(1);
    finish();
  }

  void prefill() {
    const int T = static_cast<int>(tokens_);
    const gpu::Stream stream = cuda_->stream();
    SharedCache cache(*cuda_, shape(0, T));
    const gpu::Buffer q = upload(*cuda_, normal(static_cast<std::size_t>(T) * hidden, 9));
    const gpu::Buffer out = cuda_->allocate(sizeof(float) * static_cast<std::size_t>(T) * hidden, stream);
    cuda_->attend_causal(cache.on_cuda(), q.as<float>(), T, query_heads, {}, out.as<float>(), stream);
    append(T);
    spill();
    for (const gpu::DType type : {gpu::DType::f16, gpu::DType::bf16}) {
      const gpu::Buffer w = upload(*cuda_, normal(16 * hidden, 10));
      const gpu::Matrix matrix{w.as<void>(), type, 16, hidden};
      cuda_->matmul(q.as<float>(), T, matrix, out.as<float>(), out.as<float>(), stream);
    }
    const gpu::Buffer w = upload(*cuda_, normal(hidden, 11));
    cuda_->convert_weights(w.as<void>(), gpu::DType::bf16, 2 * hidden, stream);
    finish();
  }

 private:
  void select_held(int times) {
    cuda_ = make_cuda({.memory_bytes = std::uint64_t{2} << 30, .column_cache_bytes = gpu::column_cache_rest});
    CacheShape equal = shape(tokens_, newest);
    equal.key_scale = 0;
    SharedCache cache(*cuda_, equal);
    const gpu::Buffer q = query();
    gpu::SparqSelect args;
    args.rank = rank;
    args.k = static_cast<int>(tokens_ / 1024);
    args.limit = tokens_;
    const gpu::Buffer positions =
        cuda_->allocate(sizeof(std::int32_t) * static_cast<unsigned>(kv_heads * args.k), cuda_->stream());
    const gpu::Buffer alpha = cuda_->allocate(sizeof(float) * query_heads, cuda_->stream());
    for (int i = 0; i < times; ++i) {
      cuda_->select_sparq(cache.on_cuda(), q.as<float>(), query_heads, args, positions.as<std::int32_t>(),
                          alpha.as<float>(), cuda_->stream());
    }
    finish();
  }

  CacheShape shape(std::int64_t stored, std::int64_t tail) const {
    return {.kv_heads = kv_heads,
            .head_dim = head_dim,
            .block_tokens = block_tokens,
            .stored = stored,
            .tail = tail,
            .columns = format_,
            .rows = rows_};
  }
  gpu::Buffer query() { return upload(*cuda_, random_query(query_heads, head_dim, 5)); }
  gpu::Buffer& upload_kept(const std::vector<float>& values) {
    kept_.push_back(upload(*cuda_, values));
    return kept_.back();
  }

  void attend(SharedCache& cache, const gpu::Attended& what) {
    const gpu::Buffer q = query();
    const gpu::Buffer out = cuda_->allocate(sizeof(float) * hidden, cuda_->stream());
    cuda_->attend(cache.on_cuda(), q.as<float>(), query_heads, what, out.as<float>(), cuda_->stream());
    finish();
  }

  void append(int T) {
    const gpu::Buffer rows = upload(*cuda_, std::vector<f16>(static_cast<std::size_t>(T) * kv_heads * 2 * head_dim));
    const gpu::Buffer k = upload(*cuda_, normal(static_cast<std::size_t>(T) * kv_heads * head_dim, 12));
    gpu::CacheView cache;
    cache.kv_heads = kv_heads;
    cache.head_dim = head_dim;
    cache.tail = {rows.as<f16>(), T, 0, 0, 0};
    cuda_->append(cache, k.as<float>(), k.as<float>(), T, cuda_->stream());
    cuda_->synchronize(cuda_->stream());
  }

  void spill() {
    const offload::BlockLayout layout({1, kv_heads, head_dim, block_tokens, format_, rows_});
    SharedCache cache(*cuda_, shape(0, block_tokens));
    const offload::Topology topology;
    offload::ArenaOptions options;
    options.budget_bytes = std::uint64_t{64} << 20;
    options.listener = cuda_->pinning();
    offload::Arena arena(topology, options);
    const offload::Extent block = arena.allocate(layout.block_bytes);
    cuda_->spill(cache.on_cuda(), block_tokens, layout, block.data(), cuda_->stream());
    cuda_->synchronize(cuda_->stream());
  }

  void finish() { cuda_->synchronize(cuda_->stream()); }

  std::int64_t tokens_;
  offload::ColumnFormat format_;
  int bits_;
  offload::RowFormat rows_;
  std::unique_ptr<gpu::Backend> cuda_ = make_cuda();
  std::vector<gpu::Buffer> kept_;
};

int run(int count, char** arguments) {
  const std::map<std::string, void (Layer::*)()> operations{
      {"select", &Layer::select}, {"strips", &Layer::strips}, {"held", &Layer::held},   {"rest", &Layer::rest},
      {"rows", &Layer::rows},     {"dense", &Layer::dense},   {"token", &Layer::token}, {"prefill", &Layer::prefill}};
  const std::string form = count >= 4 ? arguments[3] : "";
  const std::optional<offload::RowFormat> rows = offload::row_format(count == 5 ? arguments[4] : "f16");
  const std::string name = form.substr(0, form.find_last_not_of("0123456789") + 1);
  const bool planes = name == "planes";
  const std::optional<offload::ColumnFormat> format = offload::column_format(planes ? name : form);
  if (!format || !rows || operations.count(arguments[1]) == 0) {
    std::fputs(
        "usage: kernel_costs select|strips|held|rest|rows|dense|token|prefill TOKENS f16|int8|int4|planes[BITS] "
        "[f16|int8|int4]\n",
        stderr);
    return 2;
  }
  Layer layer(std::strtoll(arguments[2], nullptr, 10), *format, planes ? std::atoi(form.c_str() + name.size()) : 0,
              *rows);
  (layer.*operations.at(arguments[1]))();
  return 0;
}

}  // namespace
}  // namespace hayloft::testing

int main(int count, char** arguments) {
  try {
    return hayloft::testing::run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_costs: %s\n", error.what());
    return 1;
  }
}
