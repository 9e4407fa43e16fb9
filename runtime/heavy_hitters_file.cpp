#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "offload/error.h"
#include "runtime/heavy_hitters.h"

// What H2O kept of a sequence, as bytes: a header, then layer after layer its numbers of tokens seen and kept, and head
// after head the kept positions, masses and rows. Numbers as this machine has them, like the snapshots they go into.
namespace hayloft::runtime {
namespace {

struct Header {
  char magic[8];
  std::int32_t layers;
  std::int32_t kv_heads;
  std::int32_t head_dim;
  std::int32_t spare = 0;
};
constexpr char magic[8] = {'h', 'e', 'a', 'v', 'y', '/', '1', '\n'};

struct Counts {
  std::int64_t seen;
  std::int64_t kept;
};

void put(std::vector<std::byte>& bytes, const void* data, std::size_t size) {
  const std::size_t at = bytes.size();
  bytes.resize(at + size);
  if (size > 0) std::memcpy(bytes.data() + at, data, size);
}

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  void get(T* to, std::int64_t count) {
    if (static_cast<std::uint64_t>(count) > left_.size() / sizeof(T)) {
      fail("what h2o kept of the context is cut short; read the context again");
    }
    const std::size_t size = static_cast<std::size_t>(count) * sizeof(T);
    if (size > 0) std::memcpy(to, left_.data(), size);
    left_ = left_.subspan(size);
  }
  std::size_t left() const { return left_.size(); }

 private:
  std::span<const std::byte> left_;
};

[[noreturn]] void damaged(int layer) {
  fail("what h2o kept of the context is damaged in layer {}; read the context again", layer);
}

}  // namespace

std::vector<std::byte> HeavyHitters::save() const {
  std::vector<std::byte> bytes;
  Header header{{}, shape_.layers, shape_.kv_heads, shape_.head_dim};
  std::copy(std::begin(magic), std::end(magic), header.magic);
  put(bytes, &header, sizeof header);
  const std::int64_t row = 2 * shape_.head_dim;
  for (const Layer& layer : layers_) {
    const Counts counts{layer.seen, layer.kept};
    put(bytes, &counts, sizeof counts);
    for (int h = 0; h < shape_.kv_heads; ++h) {
      const Layer::Head& head = layer.heads[static_cast<std::size_t>(h)];
      put(bytes, head.positions.data(), head.positions.size() * sizeof(std::int32_t));
      put(bytes, head.mass.data(), head.mass.size() * sizeof(double));
      put(bytes, layer.rows.data() + h * layer.capacity * row,
          static_cast<std::size_t>(layer.kept * row) * sizeof(f16));
    }
  }
  return bytes;
}

void HeavyHitters::load(std::span<const std::byte> saved) {
  Input input(saved);
  Header header;
  input.get(&header, 1);
  if (!std::equal(std::begin(magic), std::end(magic), header.magic)) {
    fail("this is not what h2o keeps of a context; read the context again with --index h2o");
  }
  if (header.layers != shape_.layers || header.kv_heads != shape_.kv_heads || header.head_dim != shape_.head_dim) {
    fail(
        "what h2o kept is of {} layers with {} heads of {}, and the model has {} with {} of {}; they do not belong "
        "together",
        header.layers, header.kv_heads, header.head_dim, shape_.layers, shape_.kv_heads, shape_.head_dim);
  }
  const std::int64_t row = 2 * shape_.head_dim;
  const std::uint64_t position_bytes =
      static_cast<std::uint64_t>(shape_.kv_heads) *
      (sizeof(std::int32_t) + sizeof(double) + static_cast<std::uint64_t>(row) * sizeof(f16));
  for (int index = 0; index < shape_.layers; ++index) {
    Counts counts;
    input.get(&counts, 1);
    // So no damage makes this allocate more than was saved.
    if (counts.kept < 0 || counts.seen < counts.kept || counts.seen > std::numeric_limits<std::int32_t>::max() ||
        static_cast<std::uint64_t>(counts.kept) > input.left() / position_bytes) {
      damaged(index);
    }
    Layer& layer = layers_[static_cast<std::size_t>(index)];
    layer.seen = counts.seen;
    layer.kept = layer.capacity = counts.kept;
    layer.rows.resize(static_cast<std::size_t>(shape_.kv_heads * layer.kept * row));
    for (int h = 0; h < shape_.kv_heads; ++h) {
      Layer::Head& head = layer.heads[static_cast<std::size_t>(h)];
      head.positions.resize(static_cast<std::size_t>(layer.kept));
      head.mass.resize(static_cast<std::size_t>(layer.kept));
      input.get(head.positions.data(), layer.kept);
      input.get(head.mass.data(), layer.kept);
      input.get(layer.rows.data() + h * layer.kept * row, layer.kept * row);
      const auto out_of_order =
          std::adjacent_find(head.positions.begin(), head.positions.end(), std::greater_equal<>());
      const bool in_range = layer.kept == 0 || (head.positions.front() >= 0 && head.positions.back() < layer.seen);
      const bool weighed =
          std::all_of(head.mass.begin(), head.mass.end(), [](double m) { return m >= 0 && std::isfinite(m); });
      if (out_of_order != head.positions.end() || !in_range || !weighed) damaged(index);
    }
  }
  if (input.left() > 0) damaged(shape_.layers - 1);
}

}  // namespace hayloft::runtime
