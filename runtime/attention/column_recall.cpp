#include "runtime/attention/column_recall.h"

#include <algorithm>
#include <numeric>

#include "offload/byte_stream.h"
#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr std::uint32_t recall_version = 1;
constexpr std::uint32_t most_settings = 256;

void write_setting(ByteWriter& bytes, const ColumnSetting& setting) {
  bytes.number(static_cast<std::uint8_t>(setting.columns));
  bytes.number(static_cast<std::int32_t>(setting.size));
}

ColumnSetting read_setting(ByteReader& bytes) {
  const auto format = bytes.number<std::uint8_t>();
  const auto size = bytes.number<std::int32_t>();
  if (format >= offload::column_format_count || size < 1) fail("a setting of columns is out of range");
  return {static_cast<offload::ColumnFormat>(format), size};
}

}  // namespace

int ColumnSetting::bits() const {
  const offload::ColumnTraits& traits = offload::traits_of(columns);
  return traits.planes > 1 ? size : size * traits.bits;
}

double MeasuredSetting::mean() const {
  return recall.empty() ? 0 : std::accumulate(recall.begin(), recall.end(), 0.0) / static_cast<double>(recall.size());
}

bool ColumnRecall::blind(const ColumnSetting& setting, int layer) const {
  const MeasuredSetting* by = nullptr;
  for (const MeasuredSetting& each : settings) {
    if (each.setting.columns != setting.columns) continue;
    const bool fits = each.setting.size <= setting.size;
    const bool better = !by || (fits && (by->setting.size > setting.size || each.setting.size > by->setting.size)) ||
                        (!fits && each.setting.size < by->setting.size);
    if (better) by = &each;
  }
  return by && static_cast<std::size_t>(layer) < by->recall.size() &&
         by->recall[static_cast<std::size_t>(layer)] < blind_below;
}

std::vector<std::byte> save_column_recall(const ColumnRecall& recall) {
  ByteWriter bytes;
  bytes.number(recall_version);
  bytes.number(recall.tokens);
  bytes.number(static_cast<std::int32_t>(recall.queries));
  bytes.number(static_cast<std::int32_t>(recall.k));
  bytes.number(static_cast<std::uint32_t>(recall.settings.size()));
  for (const MeasuredSetting& each : recall.settings) {
    write_setting(bytes, each.setting);
    bytes.number(static_cast<std::uint32_t>(each.recall.size()));
    bytes.array(std::span<const float>(each.recall));
  }
  bytes.number(static_cast<std::uint8_t>(recall.chosen.has_value()));
  if (recall.chosen) write_setting(bytes, *recall.chosen);
  return bytes.take();
}

ColumnRecall load_column_recall(std::span<const std::byte> saved) {
  ByteReader bytes(saved, "the recall of the columns ends too early");
  if (bytes.number<std::uint32_t>() != recall_version) fail("the recall of the columns is of another version");
  ColumnRecall recall;
  recall.tokens = bytes.number<std::int64_t>();
  recall.queries = bytes.number<std::int32_t>();
  recall.k = bytes.number<std::int32_t>();
  const auto settings = bytes.number<std::uint32_t>();
  if (recall.tokens < 0 || recall.queries < 0 || recall.k < 0 || settings > most_settings) {
    fail("the recall of the columns is out of range");
  }
  for (std::uint32_t i = 0; i < settings; ++i) {
    MeasuredSetting& each = recall.settings.emplace_back();
    each.setting = read_setting(bytes);
    each.recall = bytes.array<float>(bytes.number<std::uint32_t>());
    if (!std::ranges::all_of(each.recall, [](float share) { return share >= 0 && share <= 1; })) {
      fail("a recall of the columns is no share");
    }
  }
  if (bytes.number<std::uint8_t>() != 0) recall.chosen = read_setting(bytes);
  return recall;
}

}  // namespace hayloft::runtime
