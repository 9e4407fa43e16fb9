#include "runtime/context/foreign_cache.h"

#include <algorithm>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "runtime/decode/prefill_attention.h"

namespace hayloft::runtime {
namespace {

constexpr int foreign_chunk_tokens = 2048;  // that go through at a time, as SessionOptions has it

}  // namespace

ForeignCache::ForeignCache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config,
                           const CacheOptions& options)
    : backend_(&backend), config_(config), cache_(backend, arena, config, options) {
  set_method(make_method({}, config.head_dim));
}

ForeignCache::ForeignCache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config,
                           const CacheOptions& options, const offload::Snapshot& snapshot)
    : backend_(&backend), config_(config), cache_(backend, arena, config, options, snapshot) {
  set_method(make_method({}, config.head_dim));
}

void ForeignCache::set_method(SharedMethod method) {
  method->require_columns(cache_.options().columns);
  method->require_layers(config_.global_layers());
  state_ =
      method->make_state({config_.global_layers(), config_.query_heads, config_.kv_heads, config_.head_dim}, *backend_);
  attention_.bind(std::move(method), state_.get());
}

void ForeignCache::require_whole() const {
  std::int64_t tokens = -1;
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (config_.kind(layer) != LayerKind::global) continue;
    const std::int64_t here = this->tokens(layer);
    if (tokens < 0) tokens = here;
    if (here != tokens || failed_) {
      fail("the cache is not whole: an earlier forward pass ended before layer {} had its tokens; make a new cache",
           layer);
    }
  }
}

const Cache& ForeignCache::settled() {
  require_whole();
  cache_.commit();
  return cache_;
}

// A layer that is not behind the one before begins a pass: what the last pass has left is made live.
void ForeignCache::begin(int layer) {
  if (failed_ || layer <= last_layer_) settled();
  last_layer_ = layer;
}

float* ForeignCache::device(gpu::Buffer& buffer, std::int64_t elements) const {
  const auto bytes = static_cast<std::uint64_t>(elements) * sizeof(float);
  if (buffer.bytes() < bytes) buffer = backend_->allocate(bytes, backend_->stream());
  return buffer.as<float>();
}

void ForeignCache::append_chunk(int layer, const float* k, const float* v, int T) {
  const std::int64_t elements = static_cast<std::int64_t>(T) * config_.kv_heads * config_.head_dim;
  const auto bytes = static_cast<std::uint64_t>(elements) * sizeof(float);
  float* const keys = device(k_, elements);
  float* const values = device(v_, elements);
  backend_->to_device(keys, k, bytes, backend_->stream());
  backend_->to_device(values, v, bytes, backend_->stream());
  cache_.append(layer, keys, values, T);
}

// A chunk of tokens that attends exactly.
void ForeignCache::read(int layer, const float* q, const float* k, const float* v, int T, float* out) {
  const gpu::Stream stream = backend_->stream();
  const std::int64_t elements = static_cast<std::int64_t>(T) * config_.query_heads * config_.head_dim;
  const auto bytes = static_cast<std::uint64_t>(elements) * sizeof(float);
  append_chunk(layer, k, v, T);
  float* const queries = device(q_, elements);
  float* const mixed = device(out_, elements);
  backend_->to_device(queries, q, bytes, stream);
  const gpu::CacheView view = cache_.view(layer);
  const LayerStep at{*backend_, stream, layer, view, cache_.store(), config_.query_heads, T, scratch_};
  PrefillAttention prompt({}, state_ ? std::vector<MethodState*>{state_.get()} : std::vector<MethodState*>{});
  prompt.attend(at, queries, T, T, mixed);
  backend_->to_host(out, mixed, bytes, stream);
  cache_.commit();
}

void ForeignCache::attend(int layer, const float* q, const float* k, const float* v, int T, float* out) {
  begin(layer);
  failed_ = true;
  const std::int64_t query_width = static_cast<std::int64_t>(config_.query_heads) * config_.head_dim;
  const std::int64_t width = static_cast<std::int64_t>(config_.kv_heads) * config_.head_dim;
  for (int done = 0; done < T - 1; done += foreign_chunk_tokens) {
    read(layer, q + done * query_width, k + done * width, v + done * width,
         std::min(foreign_chunk_tokens, T - 1 - done), out + done * query_width);
  }
  attention_.begin_step(cache_);
  const int last = T - 1;
  append_chunk(layer, k + last * width, v + last * width, 1);
  const auto bytes = static_cast<std::uint64_t>(query_width) * sizeof(float);
  float* const query = device(q_, query_width);
  float* const mixed = device(out_, query_width);
  const gpu::Stream stream = backend_->stream();
  backend_->to_device(query, q + last * query_width, bytes, stream);
  const gpu::CacheView view = cache_.view(layer);
  attention_.attend({*backend_, stream, layer, view, cache_.store(), config_.query_heads, 1, scratch_}, query, 1, 1,
                    mixed);
  backend_->to_host(out + last * query_width, mixed, bytes, stream);
  offload::check_mapped_files();
  failed_ = false;
}

}  // namespace hayloft::runtime
