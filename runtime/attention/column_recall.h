#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "offload/store/column_formats.h"

// Keeps how well the key columns of a context rank its positions, as measured when its text was read (docs/auto.md).
namespace hayloft::runtime {

// Selection by so much of columns of a format: `size` components as `sparq` reads them, or bits as `planes` does.
struct ColumnSetting {
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  int size = 0;

  // Bits that a search reads of each position, scales apart.
  int bits() const;
  friend bool operator==(const ColumnSetting&, const ColumnSetting&) = default;
};

// The recall that a setting has, by global layer: the share of the true top k positions, of each KV head by the group's
// sum of softmaxes, that are the setting's own top k.
struct MeasuredSetting {
  ColumnSetting setting;
  std::vector<float> recall;

  double mean() const;
  friend bool operator==(const MeasuredSetting&, const MeasuredSetting&) = default;
};

struct ColumnRecall {
  // A setting that finds fewer of the true top k of a layer than this share is blind there.
  static constexpr double blind_below = 0.5;

  std::int64_t tokens = 0;  // that were searched
  int queries = 0;          // of each layer
  int k = 0;
  std::vector<MeasuredSetting> settings;
  std::optional<ColumnSetting> chosen;  // whose columns the context got; none: no setting was good enough

  // True where selection by that much finds too little in a global layer, judged by the largest setting of the format
  // that is no larger, or the smallest there is. False where nothing was measured.
  bool blind(const ColumnSetting& setting, int layer) const;

  friend bool operator==(const ColumnRecall&, const ColumnRecall&) = default;
};

inline constexpr std::string_view column_recall_name = "column recall";  // of the attachment to a saved context

std::vector<std::byte> save_column_recall(const ColumnRecall& recall);
// The inverse. Throws Error, without the name of the file, on bytes that are no such thing.
ColumnRecall load_column_recall(std::span<const std::byte> saved);

}  // namespace hayloft::runtime
