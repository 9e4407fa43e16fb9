#include "offload/snapshot/shards.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "offload/snapshot/file.h"
#include "offload/store/planes.h"

// Contexts in shards, opened as one: Snapshot with several files.
namespace hayloft::offload {
namespace {

// Tokens in the blocks of all shards; layers may differ.
std::vector<std::int64_t> stored_by_all(const SnapshotState& state) {
  std::vector<std::int64_t> stored(state.metadata.layers.size());
  for (const SavedTail& tail : state.metadata.tails) {
    if (tail.store_layer >= 0) stored[static_cast<std::size_t>(tail.store_layer)] = tail.position;
  }
  return stored;
}

std::int64_t blocks_of(std::int64_t tokens, int block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

// Returns which of N shards hold blocks of this part, those of `blocks` in all, and so where its tokens and tails are
// read from.
std::vector<bool> needed(int shards, const Shard& part, std::int64_t blocks) {
  std::vector<bool> which(static_cast<std::size_t>(shards), part.alone());
  which[static_cast<std::size_t>(part.rank % shards)] = true;
  std::int64_t block = part.rank;
  for (int step = 0; step < shards && block < blocks; ++step, block += part.ranks) {
    which[static_cast<std::size_t>(block % shards)] = true;
  }
  return which;
}

void add_value_sum(const BlockLayout& layout, const std::byte* block, std::vector<double>& sum) {
  const auto d = static_cast<std::size_t>(layout.head_dim);
  for (std::size_t c = 0; c < sum.size(); ++c) {
    sum[c] += static_cast<double>(layout.value_sum(block, static_cast<int>(c / d))[c % d]);
  }
}

bool same_sums(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

}  // namespace

Snapshot Snapshot::open_shards(const std::filesystem::path& path, const ShardManifest& manifest, const Shard& part) {
  std::vector<std::shared_ptr<const Snapshot>> shards(static_cast<std::size_t>(manifest.shards));
  const auto open = [&](int rank) {
    auto& shard = shards[static_cast<std::size_t>(rank)];
    if (shard) return;
    const Shard whose{rank, manifest.shards};
    const std::filesystem::path file = shard_path(path, manifest.saving, whose);
    std::error_code error;
    if (!std::filesystem::exists(file, error)) {
      fail("{}: is not there, and {} lies in it with others; put it beside, under this name", file.string(),
           path.string());
    }
    shard = std::make_shared<const Snapshot>(open_file(file, Accept::complete, manifest.tokens));
    const SnapshotDescription& what = shard->description();
    if (what.saving != manifest.saving || what.shard != whose || what.model.fingerprint != manifest.fingerprint) {
      fail("{}: is of another context than the manifest {} says; restore the one that was saved with it", file.string(),
           path.string());
    }
    if (shard->token_count() != manifest.tokens) {
      fail(
          "{}: holds {} tokens, and the manifest {} says {}; run again what was adding to the context, or restore the "
          "file that was saved with the manifest",
          file.string(), shard->token_count(), path.string(), manifest.tokens);
    }
  };
  open(part.rank % manifest.shards);
  const Snapshot& first = *shards[static_cast<std::size_t>(part.rank % manifest.shards)];
  const std::vector<std::int64_t> stored = stored_by_all(*first.state_);
  const std::int64_t most = stored.empty() ? 0 : *std::ranges::max_element(stored);
  const std::vector<bool> which =
      needed(manifest.shards, part, blocks_of(most, first.description().shape.block_tokens));
  for (int rank = 0; rank < manifest.shards; ++rank) {
    if (!which[static_cast<std::size_t>(rank)]) continue;
    open(rank);
    const Snapshot& other = *shards[static_cast<std::size_t>(rank)];
    const SnapshotDescription &a = first.description(), &b = other.description();
    if (a.shape != b.shape || a.model_layers != b.model_layers || a.note != b.note ||
        first.cached_tokens() != other.cached_tokens() || stored_by_all(*other.state_) != stored) {
      fail("{}: does not go with {}; restore those that were saved together", other.path().string(),
           first.path().string());
    }
  }
  return Snapshot(path, std::move(shards), part);
}

Snapshot::Snapshot(std::filesystem::path path, std::vector<std::shared_ptr<const Snapshot>> shards, const Shard& part)
    : path_(std::move(path)), part_(part), shards_(std::move(shards)) {
  const std::size_t files = shards_.size();
  const Snapshot& first = *shards_[static_cast<std::size_t>(part.rank) % files];
  file_ = first.file_;
  mapping_ = first.mapping_;
  auto state = std::make_shared<SnapshotState>(*first.state_);
  SnapshotDescription& description = state->header.description;
  description.shard = {};
  description.saving = 0;
  state->header.file_bytes = 0;
  for (const auto& shard : shards_) {
    if (shard) state->header.file_bytes += shard->file_bytes();
  }
  const int B = state->layout.block_tokens;
  const std::vector<std::int64_t> stored = stored_by_all(*state);
  const bool as_saved = files == static_cast<std::size_t>(part.ranks);
  for (std::size_t index = 0; index < stored.size(); ++index) {
    SavedLayer& layer = state->metadata.layers[index];
    if (!part.alone() && stored[index] % B != 0) {
      fail("{}: its last block is not full, so that it cannot be dealt out to ranks; open it alone", path_.string());
    }
    if (layer.whole_sum.empty()) layer.whole_sum = layer.value_sum;  // one file
    layer.blocks.clear();
    for (std::int64_t i = part.rank; i < blocks_of(stored[index], B); i += part.ranks) {
      const auto block = static_cast<std::size_t>(i);
      layer.blocks.push_back(shards_[block % files]->state_->metadata.layers[index].blocks[block / files]);
    }
    layer.tokens = part.alone() ? stored[index] : part.own(stored[index], B);
  }
  state_ = state;
  if (as_saved) return;
  for (std::size_t index = 0; index < stored.size(); ++index) {
    SavedLayer& layer = state->metadata.layers[index];
    std::ranges::fill(layer.spread, 0.0);
    layer.value_sum = layer.whole_sum;
    if (!part.alone()) std::ranges::fill(layer.value_sum, 0.0);
    for (std::size_t i = 0; i < layer.blocks.size(); ++i) {
      if (!part.alone()) add_value_sum(state->layout, block(index, i), layer.value_sum);
      if (!layer.spread.empty()) add_spread(state->layout, block(index, i), layer.spread.data());
    }
  }
  check_mapping();
}

int Snapshot::files() const {
  return shards_.empty() ? 1 : static_cast<int>(shards_.size());
}

const std::byte* Snapshot::block(std::size_t layer, std::size_t index) const {
  const std::uint64_t offset = state_->metadata.layers[layer].blocks[index].offset;
  if (shards_.empty()) return mapping_->data() + offset;
  const std::size_t whole = index * static_cast<std::size_t>(part_.ranks) + static_cast<std::size_t>(part_.rank);
  return shards_[whole % shards_.size()]->mapping_->data() + offset;
}

std::shared_ptr<const void> Snapshot::mapped_files() const {
  if (shards_.empty()) return mapping_;
  auto all = std::make_shared<std::vector<std::shared_ptr<const MappedFile>>>();
  for (const auto& shard : shards_) {
    if (shard) all->push_back(shard->mapping_);
  }
  return all;
}

void Snapshot::check_mapping() const {
  mapping_->check();
  for (const auto& shard : shards_) {
    if (shard) shard->mapping_->check();
  }
}

void Snapshot::verify_shards(const SnapshotProgress& progress) const {
  std::uint64_t before = 0;
  for (const auto& shard : shards_) {
    if (!shard) continue;
    shard->verify([&](std::uint64_t bytes, std::uint64_t) {
      if (progress) progress(std::min(before + bytes, file_bytes()), file_bytes());
    });
    before += shard->file_bytes();
  }
  const std::vector<std::int32_t> ids = tokens();
  for (const auto& shard : shards_) {
    if (shard && shard->tokens() != ids) {
      fail("{}: damaged: has other token ids than {}", shard->path().string(), file_->path().string());
    }
  }
  if (!part_.alone()) return;
  for (std::size_t index = 0; index < state_->metadata.layers.size(); ++index) {
    const SavedLayer& layer = state_->metadata.layers[index];
    std::vector<double> sum(layer.whole_sum.size());
    for (std::size_t i = 0; i < layer.blocks.size(); ++i) add_value_sum(state_->layout, block(index, i), sum);
    check_mapping();
    if (!same_sums(sum, layer.whole_sum)) {
      fail("{}: damaged: layer {}: the value sums are not those of its blocks", file_->path().string(), index);
    }
  }
}

}  // namespace hayloft::offload
