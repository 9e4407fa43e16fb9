#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "offload/byte_stream.h"
#include "runtime/attention/methods/heavy_hitters.h"

// Writes and reads what H2O kept of a sequence, as bytes: its format and shape, then layer after layer the numbers of
// tokens seen and kept, and head after head the kept positions, masses and rows.
namespace hayloft::runtime {
namespace {

const std::string format = "h2o/1";

}  // namespace

std::vector<std::byte> HeavyHitters::save() const {
  ByteWriter writer;
  writer.text(format);
  for (const std::int32_t n : {shape_.layers, shape_.kv_heads, shape_.head_dim}) writer.number(n);
  const std::int64_t row = 2 * shape_.head_dim;
  for (const Layer& layer : layers_) {
    writer.number(layer.seen);
    writer.number(layer.kept);
    for (int h = 0; h < shape_.kv_heads; ++h) {
      const Layer::Head& head = layer.heads[static_cast<std::size_t>(h)];
      writer.array(std::span(head.positions));
      writer.array(std::span(head.mass));
      writer.array(std::as_bytes(std::span(layer.rows))
                       .subspan(static_cast<std::size_t>(h * layer.capacity * row) * sizeof(f16),
                                static_cast<std::size_t>(layer.kept * row) * sizeof(f16)));
    }
  }
  return writer.take();
}

void HeavyHitters::load(std::span<const std::byte> saved) {
  IndexReader reader(saved, "what h2o kept of the context");
  if (reader.text(static_cast<std::uint32_t>(format.size())) != format) reader.damaged("it has another format");
  for (const std::int32_t n : {shape_.layers, shape_.kv_heads, shape_.head_dim}) {
    if (reader.number<std::int32_t>() != n) reader.damaged("its shape is another model's");
  }
  const std::int64_t row = 2 * shape_.head_dim;
  for (Layer& layer : layers_) {
    layer.seen = reader.number<std::int64_t>();
    layer.kept = layer.capacity = reader.number<std::int64_t>();
    if (layer.kept < 0 || layer.kept > layer.seen || layer.seen > std::numeric_limits<std::int32_t>::max()) {
      reader.damaged("it keeps more positions than it has seen");
    }
    for (Layer::Head& head : layer.heads) {
      const auto kept = static_cast<std::uint64_t>(layer.kept);
      head.positions = reader.array<std::int32_t>(kept);
      head.mass = reader.array<double>(kept);
      const auto rows = reader.array<std::uint16_t>(kept * static_cast<std::uint64_t>(row));
      for (const std::uint16_t bits : rows) layer.rows.push_back({bits});

      const auto& positions = head.positions;
      if (std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) != positions.end() ||
          (kept > 0 && (positions.front() < 0 || positions.back() >= layer.seen))) {
        reader.damaged("its positions are not those of a sequence");
      }
      if (!std::all_of(head.mass.begin(), head.mass.end(), [](double m) { return m >= 0 && std::isfinite(m); })) {
        reader.damaged("its sums of attention are not numbers");
      }
    }
  }
  if (!reader.done()) reader.damaged("it is too long");
}

}  // namespace hayloft::runtime
