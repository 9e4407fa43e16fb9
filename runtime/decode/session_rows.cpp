#include <algorithm>
#include <stdexcept>

#include "runtime/decode/session.h"

// Keys and values that come to a session as they are, without their tokens being read.
namespace hayloft::runtime {
namespace {

void require_rows(const ModelConfig& config, std::span<const offload::TailImage> layers, int T) {
  const auto require = [](bool holds, const char* otherwise) {
    if (!holds) throw std::logic_error(std::string("Session::append_rows: ") + otherwise);
  };
  require(T >= 1, "there is no token");
  require(config.count(LayerKind::recurrent) == 0, "a recurrent layer has no rows");
  require(layers.size() == static_cast<std::size_t>(config.layers), "not as many layers as the model has");
  for (int layer = 0; layer < config.layers; ++layer) {
    const offload::TailImage& rows = layers[static_cast<std::size_t>(layer)];
    const std::int64_t window = config.sliding_window[static_cast<std::size_t>(layer)];
    const std::int64_t least = window > 0 ? std::min<std::int64_t>(window, T) : T;
    require(rows.tokens >= least && rows.tokens <= T, "a layer has too few rows or too many");
    require(std::ssize(rows.rows) == rows.tokens * 2 * config.heads(layer).width(),
            "the rows of a layer are not of the shape of its tokens");
  }
}

// Rows [Hkv][tokens][2 d] as the last of k and v, [T][Hkv][d]; what is before them is never attended.
void spread_rows(const offload::TailImage& rows, int kv_heads, int head_dim, int T, std::vector<float>& k,
                 std::vector<float>& v) {
  std::fill(k.begin(), k.end(), 0.0f);
  std::fill(v.begin(), v.end(), 0.0f);
  const std::int64_t missing = T - rows.tokens;
  for (int head = 0; head < kv_heads; ++head) {
    for (std::int64_t t = 0; t < rows.tokens; ++t) {
      const f16* const row = rows.rows.data() + (head * rows.tokens + t) * 2 * head_dim;
      const auto at = static_cast<std::size_t>(((missing + t) * kv_heads + head) * head_dim);
      for (std::size_t i = 0; i < static_cast<std::size_t>(head_dim); ++i) {
        k[at + i] = to_float(row[i]);
        v[at + i] = to_float(row[static_cast<std::size_t>(head_dim) + i]);
      }
    }
  }
}

}  // namespace

void Session::hold_in_tails(std::int64_t tokens) {
  if (tokens < 0) throw std::logic_error("Session::hold_in_tails: the number of tokens is negative");
  for (int layer = 0; layer < model_->config().layers; ++layer) {
    if (model_->config().kind(layer) == LayerKind::global) cache_.keep_layer_on_device(layer, tokens);
  }
}

void Session::append_rows(std::span<const offload::TailImage> layers, int T) {
  const ModelConfig& config = model_->config();
  require_rows(config, layers, T);
  gpu::Backend& backend = model_->backend();
  std::vector<float> k(static_cast<std::size_t>(T * config.widest_kv()));
  std::vector<float> v(k.size());
  const std::uint64_t bytes = k.size() * sizeof(float);
  const gpu::Buffer keys = backend.allocate(bytes, backend.stream());
  const gpu::Buffer values = backend.allocate(bytes, backend.stream());
  try {
    for (int layer = 0; layer < config.layers; ++layer) {
      const offload::TailImage& rows = layers[static_cast<std::size_t>(layer)];
      const LayerHeads heads = config.heads(layer);
      spread_rows(rows, heads.kv, heads.dim, T, k, v);
      backend.to_device(keys.as<void>(), k.data(), bytes, backend.stream());
      backend.to_device(values.as<void>(), v.data(), bytes, backend.stream());
      cache_.append(layer, keys.as<float>(), values.as<float>(), T);
      backend.synchronize(backend.stream());  // the host's numbers are those of the next layer then
    }
    cache_.commit();
    cache_.shrink();
  } catch (...) {
    cache_.abandon();
    throw;
  }
}

}  // namespace hayloft::runtime
