#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace hayloft::index {

// The scores of every position of a view as search_columns() found them, tile by tile, for whoever looks at all of them
// once more in the same step. Memory grows and stays from step to step. One per session.
class KeptScores {
 public:
  // More are not kept: reading the columns again then costs less than writing scores to memory and reading them.
  static constexpr std::int64_t most_bytes = std::int64_t{32} << 20;

  // Makes room for the scores of `tiles` tiles of each KV head, `floats` each, a multiple of 16, and returns whether it
  // did.
  bool start(int kv_heads, std::int64_t tiles, std::int64_t floats) {
    const std::int64_t count = kv_heads * tiles * floats;
    tiles_ = 0;
    if (count * static_cast<std::int64_t>(sizeof(float)) > most_bytes) return false;
    if (capacity_ < count) {
      capacity_ = count + count / 8;  // sequences grow
      memory_ = std::make_unique_for_overwrite<Line[]>(static_cast<std::size_t>(capacity_ / line_floats + 1));
    }
    tiles_ = tiles;
    floats_ = floats;
    return true;
  }
  void clear() { tiles_ = 0; }
  bool empty() const { return tiles_ == 0; }
  // [g][ColumnScores::stride()] of one tile, aligned to 64 bytes.
  float* tile(int kv_head, std::int64_t tile) { return memory_[0].floats + (kv_head * tiles_ + tile) * floats_; }

 private:
  static constexpr std::int64_t line_floats = 16;
  struct alignas(64) Line {
    float floats[line_floats];
  };
  std::unique_ptr<Line[]> memory_;
  std::int64_t capacity_ = 0;
  std::int64_t tiles_ = 0;
  std::int64_t floats_ = 0;
};

}  // namespace hayloft::index
