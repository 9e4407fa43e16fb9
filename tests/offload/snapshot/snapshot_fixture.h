#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/snapshot/snapshot.h"
#include "offload/snapshot/writer.h"

namespace hayloft::test {

// A model of three layers, global, sliding-window, global, small enough that a file of some blocks is some pages.
inline constexpr int kHeads = 2;
inline constexpr int kDim = 8;
inline constexpr int kBlock = 16;
inline constexpr int kWindow = 5;   // of the tails of global layers
inline constexpr int kSliding = 9;  // tokens that the middle layer keeps
inline constexpr int kModelLayers = 3;

inline offload::SnapshotDescription small_description() {
  offload::SnapshotDescription description;
  for (std::size_t i = 0; i < 16; ++i) description.model.fingerprint[i] = static_cast<std::uint8_t>(17 * i);
  description.model.name = "three layers";
  description.shape = {2, kHeads, kDim, kBlock, offload::ColumnFormat::f16};
  description.model_layers = kModelLayers;
  description.note = "prefill exact";
  return description;
}

// Stands for a model that reads: its tokens, K and V depend on the position only, so two contexts of N tokens are the
// same, however they came to N. Spills and forgets as a runtime does.
class SmallContext {
 public:
  explicit SmallContext(offload::Arena& arena) : store_(arena, small_description().shape), tails_(kModelLayers) {
    for (int layer = 0; layer < kModelLayers; ++layer) tails_[index(layer)].store_layer = store_layer(layer);
  }
  SmallContext(offload::Arena& arena, const offload::Snapshot& saved)
      : store_(saved.store(arena)), tokens_(saved.tokens()) {
    for (int layer = 0; layer < kModelLayers; ++layer) {
      tails_.push_back(saved.tail(layer));
      tails_.back().store_layer = store_layer(layer);
    }
  }

  void grow_to(std::int64_t tokens) {
    const auto before = static_cast<std::int64_t>(tokens_.size());
    for (std::int64_t position = before; position < tokens; ++position) {
      tokens_.push_back(static_cast<std::int32_t>(mixed(static_cast<std::uint64_t>(position)) % 50000));
    }
    for (int layer = 0; layer < kModelLayers; ++layer) {
      offload::SnapshotTail& tail = tails_[index(layer)];
      extend(layer, tail, tokens);
      if (tail.store_layer < 0) {
        drop(tail, std::max<std::int64_t>(0, tail.tokens - kSliding));
        continue;
      }
      while (tail.tokens >= kBlock + kWindow) {
        offload::BlockWriter block = store_.start_block();
        for (int head = 0; head < kHeads; ++head) {
          fill_block(store_.layout(), block.data(), head, tail.rows.data() + head * tail.tokens * 2 * kDim, 2 * kDim,
                     kBlock);
        }
        store_.commit(tail.store_layer, std::move(block), kBlock);
        drop(tail, kBlock);
      }
    }
  }

  offload::Store& store() { return store_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  std::vector<offload::TailImage> tails() const {
    std::vector<offload::TailImage> images;
    for (const offload::SnapshotTail& tail : tails_) images.push_back(tail.image());
    return images;
  }
  std::string digest() const {
    std::vector<offload::LayerView> layers;
    for (int layer = 0; layer < store_.shape().layers; ++layer) layers.push_back(store_.layer(layer));
    return offload::content_digest(tokens_, layers, tails());
  }
  void save(offload::SnapshotWriter& writer, std::span<const offload::SnapshotAttachment> attachments = {}) const {
    writer.checkpoint(store_, tokens_, tails(), attachments);
  }

 private:
  static std::size_t index(int layer) { return static_cast<std::size_t>(layer); }
  static int store_layer(int layer) { return layer == 1 ? -1 : layer / 2; }
  static std::uint64_t mixed(std::uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  static void extend(int layer, offload::SnapshotTail& tail, std::int64_t tokens) {
    const std::int64_t grown = tokens - tail.position;
    std::vector<f16> rows;
    for (int head = 0; head < kHeads; ++head) {
      const auto first = tail.rows.begin() + head * tail.tokens * 2 * kDim;
      rows.insert(rows.end(), first, first + tail.tokens * 2 * kDim);
      for (std::int64_t position = tail.position + tail.tokens; position < tokens; ++position) {
        for (int c = 0; c < 2 * kDim; ++c) {
          const std::int64_t element = ((position * kModelLayers + layer) * kHeads + head) * 2 * kDim + c;
          rows.push_back(to_f16(static_cast<float>(mixed(static_cast<std::uint64_t>(element)) % 4096) / 1024 - 2));
        }
      }
    }
    tail.rows = std::move(rows);
    tail.tokens = grown;
  }
  static void drop(offload::SnapshotTail& tail, std::int64_t tokens) {
    std::vector<f16> rows;
    for (int head = 0; head < kHeads; ++head) {
      const auto first = tail.rows.begin() + head * tail.tokens * 2 * kDim;
      rows.insert(rows.end(), first + tokens * 2 * kDim, first + tail.tokens * 2 * kDim);
    }
    tail.rows = std::move(rows);
    tail.tokens -= tokens;
    tail.position += tokens;
  }

  offload::Store store_;
  std::vector<std::int32_t> tokens_;
  std::vector<offload::SnapshotTail> tails_;
};

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace hayloft::test
