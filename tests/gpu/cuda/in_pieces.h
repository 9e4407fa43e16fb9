#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "offload/host/arena.h"

namespace hayloft::testing {

// Pins a chunk in pieces, or one in so many of them.
class InPieces : public offload::ChunkListener {
 public:
  InPieces(std::shared_ptr<offload::ChunkListener> pins, std::uint64_t piece_bytes, std::uint64_t one_in = 1)
      : pins_(std::move(pins)), piece_bytes_(piece_bytes), one_in_(one_in) {}

  void committed(std::byte* data, std::uint64_t bytes) override {
    for (std::uint64_t at = 0; at < bytes; at += piece_bytes_) {
      if (at / piece_bytes_ % one_in_ == 0) pins_->committed(data + at, std::min(piece_bytes_, bytes - at));
    }
  }
  void releasing(std::byte* data, std::uint64_t bytes) noexcept override {
    for (std::uint64_t at = 0; at < bytes; at += piece_bytes_) {
      pins_->releasing(data + at, std::min(piece_bytes_, bytes - at));
    }
  }

 private:
  const std::shared_ptr<offload::ChunkListener> pins_;
  const std::uint64_t piece_bytes_;
  const std::uint64_t one_in_;
};

}  // namespace hayloft::testing
