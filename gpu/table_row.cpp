#include "gpu/table_row.h"

#include <cstring>

namespace hayloft::gpu {
namespace {

void read_packed_row(const Matrix& w, int row, float* out) {
  const Packing& packing = w.packing;
  const std::byte* const tile = static_cast<const std::byte*>(w.data) +
                                static_cast<std::size_t>(row / packed_tile_rows) * packing.tile_bytes(w.cols);
  const int lane = row % packed_tile_rows;
  for (int col = 0; col < w.cols; col += packing.group()) {
    const PackedGroup group = group_at(packing, tile, lane, col);
    const std::byte* const chunk = tile + packing.chunk_offset(col);
    for (int i = 0; i < packing.group(); ++i) {
      const unsigned code = code_at(packing, chunk, lane, col % packed_chunk_columns + i);
      *out++ = group.scale * static_cast<float>(packing.value(code)) + group.minimum;
    }
  }
}

template <class T>
void widen_row(const Matrix& table, int row, float* out) {
  const T* const from = static_cast<const T*>(table.data) + static_cast<std::int64_t>(row) * table.cols;
  for (int i = 0; i < table.cols; ++i) out[i] = to_float(from[i]);
}

}  // namespace

void read_row(const Matrix& table, int row, float* out) {
  switch (table.type) {
    case DType::f32:
      std::memcpy(out, static_cast<const float*>(table.data) + static_cast<std::int64_t>(row) * table.cols,
                  static_cast<std::size_t>(table.cols) * sizeof(float));
      return;
    case DType::f16:
      return widen_row<f16>(table, row, out);
    case DType::bf16:
      return widen_row<bf16>(table, row, out);
    case DType::packed:
      return read_packed_row(table, row, out);
  }
}

}  // namespace hayloft::gpu
