#include "runtime/decode/prefill_read.h"

#include <algorithm>

#include "offload/byte_stream.h"
#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr std::uint32_t read_version = 1;
constexpr std::uint32_t most_heads = 1 << 16;

}  // namespace

bool left_out(const PrefillRead& read) {
  return std::ranges::any_of(read, [](const gpu::SparseRead& layer) { return layer.attended < layer.visible; });
}

std::string prefill_read_line(const PrefillRead& read) {
  double visible = 0, attended = 0, rows = 0, caught = 0, least = 1;
  std::size_t layer = 0, head = 0;
  for (std::size_t l = 0; l < read.size(); ++l) {
    visible += static_cast<double>(read[l].visible);
    attended += static_cast<double>(read[l].attended);
    for (std::size_t h = 0; h < read[l].heads.size(); ++h) {
      const gpu::SparseRead::Head& of = read[l].heads[h];
      rows += static_cast<double>(of.rows);
      caught += of.share() * static_cast<double>(of.rows);
      if (of.share() < least) least = of.share(), layer = l, head = h;
    }
  }
  if (visible == 0) return {};
  std::string line = fmt::format("{:.1f}% of the keys read", 100 * attended / visible);
  if (rows == 0) return line;
  line += fmt::format(", {:.1f}% of the attention mass caught", 100 * caught / rows);
  if (least < 1) line += fmt::format(" (least {:.1f}%, global layer {} head {})", 100 * least, layer, head);
  return line;
}

std::vector<std::byte> save_prefill_read(const PrefillRead& read) {
  ByteWriter bytes;
  bytes.number(read_version);
  bytes.number(static_cast<std::uint32_t>(read.size()));
  for (const gpu::SparseRead& layer : read) {
    bytes.number(layer.visible);
    bytes.number(layer.attended);
    bytes.number(static_cast<std::uint32_t>(layer.heads.size()));
    for (const gpu::SparseRead::Head& head : layer.heads) {
      bytes.number(head.rows);
      bytes.number(head.caught);
    }
  }
  return bytes.take();
}

PrefillRead load_prefill_read(std::span<const std::byte> saved) {
  ByteReader bytes(saved, "what was read sparsely ends too early");
  if (bytes.number<std::uint32_t>() != read_version) fail("what was read sparsely is of another version");
  const auto layers = bytes.number<std::uint32_t>();
  PrefillRead read;
  for (std::uint32_t l = 0; l < layers; ++l) {
    gpu::SparseRead layer;
    layer.visible = bytes.number<std::uint64_t>();
    layer.attended = bytes.number<std::uint64_t>();
    const auto heads = bytes.number<std::uint32_t>();
    if (layer.attended > layer.visible || heads > most_heads) fail("what was read sparsely is out of range");
    for (std::uint32_t h = 0; h < heads; ++h) {
      gpu::SparseRead::Head head;
      head.rows = bytes.number<std::uint64_t>();
      head.caught = bytes.number<std::uint64_t>();
      if (static_cast<double>(head.caught) * gpu::SparseRead::unit > static_cast<double>(head.rows)) {
        fail("what was read sparsely has caught more than all");
      }
      layer.heads.push_back(head);
    }
    read.push_back(std::move(layer));
  }
  return read;
}

}  // namespace hayloft::runtime
