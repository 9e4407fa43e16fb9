#include "runtime/context/hot_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "offload/byte_stream.h"
#include "offload/error.h"
#include "offload/snapshot/format.h"

namespace hayloft::runtime {
namespace {

const std::string magic = "hayhot1\n";

void write_subject(ByteWriter& writer, const HotSubject& subject) {
  writer.array(std::span<const std::uint8_t>(subject.fingerprint));
  writer.number(subject.tokens);
  writer.number(subject.stored_tokens);
  writer.number(subject.kv_heads);
  writer.number(subject.runs);
}

HotSubject read_subject(ByteReader& reader) {
  HotSubject subject;
  reader.into(std::span<std::uint8_t>(subject.fingerprint));
  subject.tokens = reader.number<std::int64_t>();
  subject.stored_tokens = reader.number<std::int64_t>();
  subject.kv_heads = reader.number<std::int32_t>();
  subject.runs = reader.number<std::int32_t>();
  return subject;
}

// Throws Error unless the next layer is as gpu::HotReads demands.
gpu::HotReads read_layer(ByteReader& reader, const HotSubject& subject) {
  gpu::HotReads layer;
  const auto heads = static_cast<std::uint64_t>(subject.kv_heads);
  if (reader.number<std::uint8_t>() != 0) {
    layer.runs = reader.array<float>(heads * static_cast<std::uint64_t>(subject.runs));
    const auto sound = [](float use) { return use >= 0 && std::isfinite(use); };
    if (!std::all_of(layer.runs.begin(), layer.runs.end(), sound)) fail("a use is no number");
  }
  if (reader.number<std::uint8_t>() == 0) return layer;
  for (std::uint64_t head = 0; head < heads; ++head) {
    const std::vector<std::int32_t>& rows =
        layer.rows.emplace_back(reader.array<std::int32_t>(reader.number<std::uint32_t>()));
    if (std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) != rows.end() ||
        (!rows.empty() && (rows.front() < 0 || rows.back() >= subject.stored_tokens))) {
      fail("positions are not those of the context");
    }
  }
  return layer;
}

}  // namespace

std::filesystem::path hot_file_of(const std::filesystem::path& context) {
  std::filesystem::path path = context;
  path += ".hot";
  return path;
}

std::vector<std::byte> write_hot(const HotSubject& subject, std::span<const gpu::HotReads> layers) {
  ByteWriter body;
  write_subject(body, subject);
  body.number(static_cast<std::int32_t>(layers.size()));
  for (const gpu::HotReads& layer : layers) {
    body.number(static_cast<std::uint8_t>(layer.runs.empty() ? 0 : 1));
    body.array(std::span(layer.runs));
    body.number(static_cast<std::uint8_t>(layer.rows.empty() ? 0 : 1));
    for (const std::vector<std::int32_t>& rows : layer.rows) {
      body.number(static_cast<std::uint32_t>(rows.size()));
      body.array(std::span(rows));
    }
  }
  const std::vector<std::byte> bytes = body.take();
  ByteWriter file;
  file.array(std::span<const char>(magic));
  file.number(offload::snapshot_checksum(bytes));
  file.array(std::span(bytes));
  return file.take();
}

std::optional<std::vector<gpu::HotReads>> read_hot(std::span<const std::byte> bytes, const HotSubject& subject,
                                                   std::size_t layers) {
  try {
    ByteReader reader(bytes, "it ends too early");
    if (reader.letters(magic.size()) != magic) return std::nullopt;
    const auto checksum = reader.number<std::uint64_t>();
    if (checksum != offload::snapshot_checksum(bytes.last(reader.left()))) return std::nullopt;
    if (read_subject(reader) != subject) return std::nullopt;
    if (reader.number<std::int32_t>() != static_cast<std::int64_t>(layers)) return std::nullopt;
    std::vector<gpu::HotReads> read;
    for (std::size_t layer = 0; layer < layers; ++layer) read.push_back(read_layer(reader, subject));
    if (!reader.done()) return std::nullopt;
    return read;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace hayloft::runtime
