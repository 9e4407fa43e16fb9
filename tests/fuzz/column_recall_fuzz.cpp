#include <cmath>
#include <cstdlib>
#include <span>

#include "offload/error.h"
#include "runtime/attention/column_recall.h"

// Whatever a saved context holds in place of the recall of its columns, it is refused, or saved again the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hayloft::runtime;
  try {
    const ColumnRecall recall = load_column_recall(std::as_bytes(std::span(data, size)));
    if (load_column_recall(save_column_recall(recall)) != recall) std::abort();
    for (const MeasuredSetting& each : recall.settings) {
      if (std::isnan(each.mean())) std::abort();
      recall.blind(each.setting, 0);
    }
  } catch (const hayloft::Error&) {
  }
  return 0;
}
