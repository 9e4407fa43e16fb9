#include "offload/store/columns.h"
#include "offload/store/transpose.h"

// f16 columns are the keys transposed.
namespace hayloft::offload {
namespace {

void fill_f16_columns(const BlockLayout& layout, std::byte* head, const f16* rows, std::int64_t stride, int first,
                      int tokens) {
  auto* const columns = reinterpret_cast<f16*>(head + layout.columns_offset);
  transpose(rows, stride, tokens, layout.head_dim, columns + first, layout.block_tokens);
}

float f16_column_key(const BlockLayout& layout, const std::byte* block, int head, int component, int t) {
  return to_float(reinterpret_cast<const f16*>(layout.column(block, head, component))[t]);
}

}  // namespace

const ColumnCode f16_columns{fill_f16_columns, f16_column_key};

}  // namespace hayloft::offload
