#include "runtime/decode/prefill_read.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "offload/byte_stream.h"
#include "offload/error.h"
#include "offload/text/text_table.h"

namespace hayloft::runtime {
namespace {

constexpr std::uint32_t read_version = 2;  // 1 counted no choices
constexpr std::uint32_t most_heads = 1 << 16;

// Sums a layer's heads.
struct LayerRead {
  explicit LayerRead(const gpu::SparseRead& layer) {
    for (std::size_t h = 0; h < layer.heads.size(); ++h) {
      const gpu::SparseRead::Head& of = layer.heads[h];
      rows += static_cast<double>(of.rows);
      caught += of.share() * static_cast<double>(of.rows);
      if (of.share() < least) least = of.share(), least_head = h;
    }
    for (const gpu::SparseRead::Choices& of : layer.choices) whole_heads += of.whole > of.made - of.whole;
  }
  double share() const { return rows > 0 ? caught / rows : 1; }

  double rows = 0, caught = 0;  // that were measured, and their masses
  double least = 1;             // share of a head
  std::size_t least_head = 0;
  int whole_heads = 0;  // KV heads most of whose choices came to all keys
};

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
    const LayerRead of(read[l]);
    rows += of.rows;
    caught += of.caught;
    if (of.least < least) least = of.least, layer = l, head = of.least_head;
  }
  if (visible == 0) return {};
  std::string line = fmt::format("{:.1f}% of the keys read", 100 * attended / visible);
  if (rows == 0) return line;
  line += fmt::format(", {:.1f}% of the attention mass caught", 100 * caught / rows);
  if (least < 1) line += fmt::format(" (least {:.1f}%, global layer {} head {})", 100 * least, layer, head);
  return line;
}

std::string prefill_read_table(const PrefillRead& read) {
  TextTable table{{"global layer", "keys read", "heads that read all", "mass caught", "least of a head"}};
  for (std::size_t l = 0; l < read.size(); ++l) {
    const LayerRead of(read[l]);
    table.push_back({fmt::format("{}", l), fmt::format("{:.1f}%", 100 * read[l].density()),
                     fmt::format("{} of {}", of.whole_heads, read[l].choices.size()),
                     fmt::format("{:.1f}%", 100 * of.share()), fmt::format("{:.1f}%", 100 * of.least)});
  }
  return aligned(table);
}

nlohmann::ordered_json prefill_read_json(const PrefillRead& read) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (std::size_t l = 0; l < read.size(); ++l) {
    const LayerRead of(read[l]);
    json.push_back({{"global_layer", l},
                    {"keys_read", read[l].density()},
                    {"heads_that_read_all", of.whole_heads},
                    {"kv_heads", read[l].choices.size()},
                    {"mass_caught", of.share()},
                    {"least_of_a_head", of.least},
                    {"least_head", of.least_head}});
  }
  return json;
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
    bytes.number(static_cast<std::uint32_t>(layer.choices.size()));
    for (const gpu::SparseRead::Choices& choices : layer.choices) {
      bytes.number(choices.made);
      bytes.number(choices.whole);
    }
  }
  return bytes.take();
}

PrefillRead load_prefill_read(std::span<const std::byte> saved) {
  ByteReader bytes(saved, "what was read sparsely ends too early");
  const auto version = bytes.number<std::uint32_t>();
  if (version < 1 || version > read_version) fail("what was read sparsely is of another version");
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
    const auto kv_heads = version > 1 ? bytes.number<std::uint32_t>() : 0;
    if (kv_heads > most_heads) fail("what was read sparsely is out of range");
    for (std::uint32_t h = 0; h < kv_heads; ++h) {
      gpu::SparseRead::Choices choices;
      choices.made = bytes.number<std::uint64_t>();
      choices.whole = bytes.number<std::uint64_t>();
      if (choices.whole > choices.made) fail("what was read sparsely is out of range");
      layer.choices.push_back(choices);
    }
    read.push_back(std::move(layer));
  }
  return read;
}

}  // namespace hayloft::runtime
