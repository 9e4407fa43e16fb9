#include "offload/snapshot/snapshot.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "offload/snapshot/file.h"
#include "offload/snapshot/shards.h"
#include "offload/store/planes.h"

namespace hayloft::offload {

Snapshot::Snapshot(std::shared_ptr<const SnapshotFile> file, std::shared_ptr<const SnapshotState> state)
    : file_(std::move(file)), state_(std::move(state)), path_(file_->path()), part_(state_->header.description.shard) {
  mapping_ = map_shared(file_->descriptor(), state_->header.file_bytes, file_->path());
}

Snapshot::Snapshot(Snapshot&&) noexcept = default;
Snapshot& Snapshot::operator=(Snapshot&&) noexcept = default;
Snapshot::~Snapshot() = default;

Snapshot Snapshot::open(const std::filesystem::path& path, Accept accept, const Shard& part) {
  if (const auto manifest = read_manifest(path)) return open_shards(path, *manifest, part);
  Snapshot whole = open_file(path, accept);
  const Shard& shard = whole.description().shard;
  if (!shard.alone()) {
    fail("{}: holds the blocks of rank {} of {} alone; name the manifest that lies beside it, without {}",
         path.string(), shard.rank, shard.ranks, shard_ending(whole.description().saving, shard));
  }
  if (part.alone()) return whole;
  return Snapshot(path, {std::make_shared<const Snapshot>(std::move(whole))}, part);
}

Snapshot Snapshot::open_file(const std::filesystem::path& path, Accept accept, std::optional<std::int64_t> tokens) {
  const std::shared_ptr<const SnapshotFile> file = SnapshotFile::open(path, SnapshotFile::Mode::read);
  auto state = std::make_shared<const SnapshotState>(file->last_checkpoint());
  if (tokens && *tokens != state->header.tokens) {
    auto before = file->checkpoint_before(state->header);
    if (before && before->header.complete && before->header.tokens == *tokens) {
      state = std::make_shared<const SnapshotState>(std::move(*before));
    }
  }
  if (!state->header.complete && accept == Accept::complete) {
    fail(
        "{}: unfinished: it holds {} tokens, of which {} were there when it was last complete; run the command that "
        "was writing it again to continue",
        path.string(), state->header.tokens, state->header.finished_tokens);
  }
  return Snapshot(file, std::move(state));
}

const std::filesystem::path& Snapshot::path() const {
  return path_;
}
const SnapshotDescription& Snapshot::description() const {
  return state_->header.description;
}
bool Snapshot::complete() const {
  return state_->header.complete;
}
std::string Snapshot::damaged_slot() const {
  for (const auto& shard : shards_) {
    if (std::string damaged = shard ? shard->damaged_slot() : ""; !damaged.empty()) return damaged;
  }
  return shards_.empty() ? file_->damaged_slot(state_->header) : "";
}
std::int64_t Snapshot::token_count() const {
  return state_->header.tokens;
}
std::int64_t Snapshot::finished_tokens() const {
  return state_->header.finished_tokens;
}
std::int64_t Snapshot::cached_tokens() const {
  return state_->metadata.cached_tokens();
}
std::int64_t Snapshot::stored_tokens(int store_layer) const {
  return state_->metadata.layers.at(static_cast<std::size_t>(store_layer)).tokens;
}
std::uint64_t Snapshot::file_bytes() const {
  return state_->header.file_bytes;
}

std::vector<std::int64_t> Snapshot::earlier_checkpoints() const {
  std::vector<std::int64_t> tokens;
  for (const SavedPoint& point : state_->metadata.points) {
    if (point.cached_tokens() < cached_tokens()) tokens.push_back(point.cached_tokens());
  }
  return tokens;
}

std::optional<Snapshot> Snapshot::back_to(std::int64_t tokens) const {
  if (!shards_.empty()) return std::nullopt;
  std::optional<SnapshotState> earlier = state_back_to(*state_, tokens);
  if (!earlier) return std::nullopt;
  return Snapshot(file_, std::make_shared<const SnapshotState>(std::move(*earlier)));
}

void Snapshot::require_model(const ModelIdentity& model) const {
  const ModelIdentity& own = description().model;
  if (own.fingerprint == model.fingerprint || own.fingerprint == model.former) return;
  const auto hex = [](const ModelIdentity& of) { return fmt::format("{:02x}", fmt::join(of.fingerprint, "")); };
  fail(
      "{}: made with the model {} (fingerprint {}), not with {} ({}); open it with the model it was made with, and the "
      "same --rope and --weights options",
      path().string(), own.name, hex(own), model.name, hex(model));
}

std::vector<std::int32_t> Snapshot::tokens() const {
  std::size_t all = 0;  // those of a context that went back to an earlier checkpoint included
  for (const SavedTokens& segment : state_->metadata.segments) all += static_cast<std::size_t>(segment.count);
  std::vector<std::int32_t> tokens(all);
  std::span<std::int32_t> rest(tokens);
  for (const SavedTokens& segment : state_->metadata.segments) {
    const auto count = static_cast<std::size_t>(segment.count);
    const auto bytes = std::as_writable_bytes(rest.first(count));
    file_->read(segment.offset, bytes);
    if (snapshot_checksum(bytes) != segment.checksum) {
      const std::size_t first = tokens.size() - rest.size();
      file_->refuse_damaged(fmt::format("token ids {} to {} do not match their checksum", first, first + count - 1));
    }
    rest = rest.subspan(count);
  }
  tokens.resize(static_cast<std::size_t>(token_count()));
  return tokens;
}

SnapshotTail Snapshot::tail(int model_layer) const {
  const SavedTail& saved = state_->metadata.tails.at(static_cast<std::size_t>(model_layer));
  SnapshotTail tail{saved.store_layer, saved.position, saved.tokens, {}, {}, {}, saved.kv_heads};
  if (tail.store_layer >= 0)
    tail.whole_sum = state_->metadata.layers[static_cast<std::size_t>(tail.store_layer)].whole_sum;
  tail.rows.resize(tail_bytes(state_->layout, saved.tokens, saved.row_elements) / sizeof(f16));
  tail.state.resize(saved.state_floats);
  const auto bytes = saved.state_floats > 0 ? std::as_writable_bytes(std::span(tail.state))
                                            : std::as_writable_bytes(std::span(tail.rows));
  file_->read(saved.offset, bytes);
  if (snapshot_checksum(bytes) == saved.checksum) return tail;
  if (file_->last_checkpoint().header.sequence != state_->header.sequence) {
    fail("{}: written to since it was opened; open it again", path().string());
  }
  file_->refuse_damaged(fmt::format("the tail of model layer {} does not match its checksum", model_layer));
}

Store Snapshot::store(Arena& arena) const {
  std::vector<AdoptedLayer> layers;
  for (std::size_t index = 0; index < state_->metadata.layers.size(); ++index) {
    const SavedLayer& saved = state_->metadata.layers[index];
    AdoptedLayer& layer = layers.emplace_back();
    layer.tokens = saved.tokens;
    layer.value_sum = saved.value_sum;
    layer.spread = saved.spread;
    layer.blocks.reserve(saved.blocks.size());
    for (std::size_t i = 0; i < saved.blocks.size(); ++i) layer.blocks.push_back(block(index, i));
  }
  return Store(arena, description().shape, mapped_files(), std::move(layers));
}

std::vector<std::string> Snapshot::attachments() const {
  std::vector<std::string> names;
  for (const SavedAttachment& saved : state_->metadata.attachments) names.push_back(saved.name);
  return names;
}

std::optional<std::span<const std::byte>> Snapshot::attachment(std::string_view name) const {
  for (const SavedAttachment& saved : state_->metadata.attachments) {
    if (saved.name != name) continue;
    const std::span<const std::byte> bytes(mapping_->data() + saved.offset, saved.bytes);
    const bool same = snapshot_checksum(bytes) == saved.checksum;
    mapping_->check();
    if (!same) {
      fail(
          "{}: damaged: its part '{}' does not match its checksum; make an index again by hayloft index, anything else "
          "by ingest",
          path().string(), name);
    }
    return bytes;
  }
  return std::nullopt;
}

void Snapshot::verify(const SnapshotProgress& progress) const {
  if (!shards_.empty()) return verify_shards(progress);
  tokens();
  for (const std::string& name : attachments()) attachment(name);
  for (int layer = 0; layer < description().model_layers; ++layer) tail(layer);
  const BlockLayout& layout = state_->layout;
  const auto d = static_cast<std::size_t>(layout.head_dim);
  std::uint64_t total = 0;
  for (const SavedLayer& layer : state_->metadata.layers) total += layer.blocks.size() * layout.block_bytes;
  std::uint64_t done = 0;
  for (std::size_t index = 0; index < state_->metadata.layers.size(); ++index) {
    const SavedLayer& layer = state_->metadata.layers[index];
    std::vector<double> sum(layer.value_sum.size());
    std::vector<double> spread(layer.spread.size());
    for (std::size_t i = 0; i < layer.blocks.size(); ++i) {
      const std::byte* const block = mapping_->data() + layer.blocks[i].offset;
      const bool same = snapshot_checksum({block, layout.block_bytes}) == layer.blocks[i].checksum;
      mapping_->check();
      if (!same) {
        const std::int64_t first =
            description().shard.whole(static_cast<std::int64_t>(i) * layout.block_tokens, layout.block_tokens);
        file_->refuse_damaged(fmt::format("layer {}, block {} (tokens from {} on) does not match its checksum", index,
                                          first / layout.block_tokens, first));
      }
      for (std::size_t c = 0; c < sum.size(); ++c) {
        sum[c] += static_cast<double>(layout.value_sum(block, static_cast<int>(c / d))[c % d]);
      }
      if (!spread.empty()) add_spread(layout, block, spread.data());
      done += layout.block_bytes;
      if (progress) progress(done, total);
    }
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    if (!std::equal(sum.begin(), sum.end(), layer.value_sum.begin(), same)) {
      file_->refuse_damaged(fmt::format("layer {}: the value sums are not those of its blocks", index));
    }
    if (spread != layer.spread) {
      file_->refuse_damaged(fmt::format("layer {}: the spread of its keys is not that of its blocks", index));
    }
  }
}

std::string Snapshot::content_digest(const SnapshotProgress& progress) const {
  std::vector<SnapshotTail> tails;
  std::vector<TailImage> images;
  for (int layer = 0; layer < description().model_layers; ++layer) {
    images.push_back(tails.emplace_back(tail(layer)).image());
  }
  // Views as Store::layer() gives them; there is no arena here to make a store with.
  std::vector<std::vector<const std::byte*>> blocks;
  std::vector<std::vector<float>> sums;
  std::vector<LayerView> layers;
  for (const SavedLayer& saved : state_->metadata.layers) {
    std::vector<const std::byte*>& of = blocks.emplace_back();
    for (std::size_t i = 0; i < saved.blocks.size(); ++i) of.push_back(block(layers.size(), i));
    const std::vector<float>& sum = sums.emplace_back(saved.value_sum.begin(), saved.value_sum.end());
    layers.push_back({&state_->layout, of, saved.tokens, sum, {}});
  }
  std::string digest = offload::content_digest(tokens(), layers, images, progress);
  check_mapping();
  return digest;
}

}  // namespace hayloft::offload
