#include "runtime/context/foreign_context.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "offload/snapshot/writer.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/context/ingest.h"
#include "runtime/context/reading_note.h"

namespace hayloft::runtime {
namespace {

constexpr int entered_tokens = 2048;  // that enter the cache at a time

std::string shape_text(const TensorView& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

std::string name_of(const ForeignContext& context, std::size_t layer, const char* which) {
  return fmt::format("{}: layer.{}.{}", context.source, layer, which);
}

void check_tensor(const TensorView& tensor, const std::string& name, const ModelConfig& config) {
  if (tensor.dtype != "F64" && tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16") {
    fail("{} has dtype {}; it must be F64, F32, F16 or BF16", name, tensor.dtype);
  }
  if (tensor.shape.size() != 3 || tensor.shape[0] != config.kv_heads || tensor.shape[2] != config.head_dim ||
      tensor.shape[1] < 1) {
    fail("{} has shape {}; the model has {} KV heads of {}, so it must be [{}, S, {}]", name, shape_text(tensor),
         config.kv_heads, config.head_dim, config.kv_heads, config.head_dim);
  }
}

void check_ids(std::span<const std::int32_t> tokens, const ModelConfig& config, const std::string& source) {
  if (tokens.size() > std::size_t{std::numeric_limits<std::int32_t>::max()}) {
    fail("{}: {} tokens are more than positions of 32 bits can name", source, tokens.size());
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size) {
      fail("{}: token {} is {}, none of the model's vocabulary of {}", source, i, tokens[i], config.vocab_size);
    }
  }
}

// S. Checks every tensor, and lengths against each other.
std::int64_t check(const ForeignContext& context, const ModelConfig& config) {
  check_ids(context.tokens, config, context.source);
  const auto layers = static_cast<std::size_t>(config.layers);
  if (context.k.size() != layers || context.v.size() != layers) {
    fail("{}: has keys of {} layers and values of {}; the model has {}", context.source, context.k.size(),
         context.v.size(), config.layers);
  }
  std::int64_t cached = -1;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    check_tensor(context.k[layer], name_of(context, layer, "k"), config);
    check_tensor(context.v[layer], name_of(context, layer, "v"), config);
    const std::int64_t tokens = context.k[layer].shape[1];
    if (context.v[layer].shape[1] != tokens) {
      fail("{} is {} and its values {}; they must be alike", name_of(context, layer, "k"), shape_text(context.k[layer]),
           shape_text(context.v[layer]));
    }
    if (config.sliding_window[layer] > 0) continue;
    if (cached < 0) cached = tokens;
    if (tokens != cached) {
      fail("{} has {} tokens, and a global layer before it {}", name_of(context, layer, "k"), tokens, cached);
    }
  }
  if (cached < 0) fail("{}: the model has no global layer, so there is nothing to save", context.source);
  if (cached > static_cast<std::int64_t>(context.tokens.size())) {
    fail("{}: K and V of {} tokens, and ids of only {}", context.source, cached, context.tokens.size());
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::int64_t window = config.sliding_window[layer];
    const std::int64_t tokens = context.k[layer].shape[1];
    if (window > 0 && (tokens > cached || tokens < std::min(cached, window - 1))) {
      fail("{} has {} tokens; a sliding window of {} needs {} to {} of them", name_of(context, layer, "k"), tokens,
           window, std::min(cached, window - 1), cached);
    }
  }
  return cached;
}

// [T][Hkv][d] of the tokens from `first` on.
std::vector<float> token_major(const TensorView& tensor, std::int64_t first, std::int64_t T, const std::string& name) {
  const std::int64_t heads = tensor.shape[0];
  const std::int64_t d = tensor.shape[2];
  std::vector<float> out(static_cast<std::size_t>(T * heads * d));
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::vector<float> run = to_f32(tensor, (head * tensor.shape[1] + first) * d, T * d, name);
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t c = 0; c < d; ++c) {
        const float value = run[static_cast<std::size_t>(t * d + c)];
        if (!std::isfinite(to_float(to_f16(value)))) {
          fail("{} holds {} at [{}, {}, {}]; the store keeps finite numbers of at most 65504", name, value, head,
               first + t, c);
        }
        out[static_cast<std::size_t>((t * heads + head) * d + c)] = value;
      }
    }
  }
  return out;
}

void fill_layer(Cache& cache, int layer, const TensorView& k, const TensorView& v, const std::string& name,
                gpu::Backend& backend) {
  const gpu::Stream stream = backend.stream();
  for (std::int64_t first = 0; first < k.shape[1]; first += entered_tokens) {
    const std::int64_t T = std::min<std::int64_t>(entered_tokens, k.shape[1] - first);
    const std::vector<float> keys = token_major(k, first, T, name);
    const std::vector<float> values = token_major(v, first, T, name);
    const std::uint64_t bytes = keys.size() * sizeof(float);
    const gpu::Buffer on_device = backend.allocate(2 * bytes, stream);
    auto* const to = on_device.as<float>();
    backend.to_device(to, keys.data(), bytes, stream);
    backend.to_device(to + keys.size(), values.data(), bytes, stream);
    cache.append(layer, to, to + keys.size(), static_cast<int>(T));
    cache.commit();
  }
}

// The rows of a sliding-window layer, of the newest tokens that its window holds.
offload::SnapshotTail window_tail(const TensorView& k, const TensorView& v, std::int64_t window, std::int64_t cached,
                                  const std::string& name) {
  const std::int64_t heads = k.shape[0];
  const std::int64_t d = k.shape[2];
  const std::int64_t T = std::min(k.shape[1], window);
  const std::int64_t first = k.shape[1] - T;
  const std::vector<float> keys = token_major(k, first, T, name);
  const std::vector<float> values = token_major(v, first, T, name);
  offload::SnapshotTail tail{-1, cached - T, T, {}};
  tail.rows.resize(static_cast<std::size_t>(heads * T * 2 * d));
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t head = 0; head < heads; ++head) {
      f16* const row = tail.rows.data() + (head * T + t) * 2 * d;
      const auto from = static_cast<std::size_t>((t * heads + head) * d);
      for (std::int64_t c = 0; c < d; ++c) {
        row[c] = to_f16(keys[from + static_cast<std::size_t>(c)]);
        row[d + c] = to_f16(values[from + static_cast<std::size_t>(c)]);
      }
    }
  }
  return tail;
}

std::vector<std::int32_t> read_ids(const TensorView& tensor, const std::string& name) {
  if ((tensor.dtype != "I32" && tensor.dtype != "I64") || tensor.shape.size() != 1) {
    fail("{} has dtype {} and shape {}; it must be I32 or I64 [N]", name, tensor.dtype, shape_text(tensor));
  }
  const std::size_t width = tensor.dtype == "I32" ? 4 : 8;
  std::vector<std::int32_t> ids(tensor.data.size() / width);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::int64_t id = 0;
    std::int32_t narrow = 0;
    std::memcpy(width == 4 ? static_cast<void*>(&narrow) : &id, tensor.data.data() + i * width, width);
    if (width == 4) id = narrow;
    ids[i] = id >= 0 && id <= std::numeric_limits<std::int32_t>::max() ? static_cast<std::int32_t>(id) : -1;
  }
  return ids;
}

// Reads the note that export_context() wrote. Throws Error where it is none.
ReadingNote read_reading(const TensorView& tensor, const std::string& file) {
  std::string note;
  for (const std::int32_t character : read_ids(tensor, fmt::format("{}: {}", file, reading_name))) {
    note += character > 0 && character < 128 ? static_cast<char>(character) : '?';
  }
  return read_note(note, file);
}

}  // namespace

ContextModel::ContextModel(const std::filesystem::path& path)
    : config(Checkpoint::open(path)->config()), identity(identity_of(path)) {
  if (config.count(LayerKind::recurrent) > 0) {
    fail("{}: has recurrent layers, whose states are neither taken from other programs nor given to them",
         path.string());
  }
  if (config.count(LayerKind::sliding) > 0 && config.sliding_heads() != LayerHeads{config.kv_heads, config.head_dim}) {
    fail(
        "{}: its sliding layers have heads of another shape than the others, whose K and V are neither taken from "
        "other programs nor given to them",
        path.string());
  }
}

ContextTokens save_context(const Cache& cache, std::span<const std::int32_t> tokens,
                           const std::map<int, offload::SnapshotTail>& windows, const ContextModel& model,
                           const std::filesystem::path& path, bool overwrite, const ReadingNote& reading) {
  const ModelConfig& config = model.config;
  if (cache.store().shape() != store_shape(config, cache.options())) {
    fail("{}: the cache has {} global layers with {} KV heads of {}, and the model {} with {} of {}", path.string(),
         cache.store().shape().layers, cache.store().shape().kv_heads, cache.store().shape().head_dim,
         config.global_layers(), config.kv_heads, config.head_dim);
  }
  check_ids(tokens, config, path.string());
  std::vector<offload::SnapshotTail> tails = cache.tails();
  std::vector<offload::TailImage> images;
  for (std::size_t layer = 0; layer < tails.size(); ++layer) {
    const auto given = windows.find(static_cast<int>(layer));
    if ((config.sliding_window[layer] > 0) != (tails[layer].store_layer < 0)) {
      fail("{}: layer {} is {} in the model, and not in the cache", path.string(), layer,
           config.sliding_window[layer] > 0 ? "a sliding-window layer" : "global");
    }
    images.push_back(given == windows.end() ? tails[layer].image() : given->second.image());
  }
  const auto all = static_cast<std::int64_t>(tokens.size());
  const std::int64_t cached = images.front().position + images.front().tokens;
  if (cached > all) fail("{}: K and V of {} tokens, and ids of only {}", path.string(), cached, all);
  const offload::SnapshotDescription description{
      model.identity, cache.store().shape(), config.layers,
      write_note({entered_tokens, reading.prefill, 0, reading.products, reading.approximate})};
  offload::save_snapshot(path, description, cache.store(), tokens, images, overwrite);
  return {all, cached};
}

ContextTokens save_context(const ForeignContext& context, const ContextModel& model, gpu::Backend& backend,
                           offload::Arena& arena, const CacheOptions& options, const std::filesystem::path& path,
                           bool overwrite) {
  const std::int64_t cached = check(context, model.config);
  Cache cache(backend, arena, model.config, options);
  std::map<int, offload::SnapshotTail> windows;
  for (int layer = 0; layer < model.config.layers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    const std::string name = fmt::format("{}: layer.{}", context.source, layer);
    const std::int64_t window = model.config.sliding_window[at];
    if (window == 0) {
      fill_layer(cache, layer, context.k[at], context.v[at], name, backend);
    } else {
      windows.emplace(layer, window_tail(context.k[at], context.v[at], window, cached, name));
    }
  }
  offload::check_mapped_files();  // what was read of a file that was cut short meanwhile is worthless
  return save_context(cache, context.tokens, windows, model, path, overwrite, context.reading);
}

ContextTokens import_context(const std::filesystem::path& input, const ContextModel& model, gpu::Backend& backend,
                             offload::Arena& arena, const CacheOptions& options, const std::filesystem::path& path) {
  const SafetensorsFile file(input);
  ForeignContext context{input.string(), read_ids(file.at("tokens"), input.string() + ": tokens"), {}, {}};
  for (int layer = 0; layer < model.config.layers; ++layer) {
    context.k.push_back(file.at(fmt::format("layer.{}.k", layer)));
    context.v.push_back(file.at(fmt::format("layer.{}.v", layer)));
  }
  const bool noted = file.contains(reading_name);
  if (noted) context.reading = read_reading(file.at(reading_name), input.string());
  const std::size_t known = 1 + context.k.size() + context.v.size() + (noted ? 1 : 0);
  if (file.tensors().size() != known) {
    fail("{}: holds {} tensors, and tokens with K and V of the model's {} layers are {}", input.string(),
         file.tensors().size(), model.config.layers, known);
  }
  return save_context(context, model, backend, arena, options, path);
}

}  // namespace hayloft::runtime
