#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/link/kernels.cuh"
#include "gpu/cuda/link/run.h"
#include "gpu/cuda/memory/column_tiles.h"
#include "gpu/cuda/memory/device_arena.h"
#include "offload/store/layout.h"

// The chosen columns of blocks of keys with their scales, as the store lays them out and as step 1 of SparQ brings them
// in: read by the multiprocessors, behind a gate as everything else; or tile by tile through ColumnTiles, as the host
// gets round to queueing it. One layer of a decode step begins with a wait of the host for the choice of columns, and
// then needs some thousand copies, so that how fast they are queued may be all that counts.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kBlockTokens = 4096;  // the store's default block
constexpr int kHeadDim = 128;
constexpr int kRank = 16;                                       // columns of a key that step 1 reads
constexpr std::uint64_t kLayerTokens = std::uint64_t{8} << 20;  // of all KV heads: 8 of 1M tokens
constexpr std::uint64_t kArenaBytes = std::uint64_t{64} << 20;  // for two tiles

struct ColumnTest {
  const char* name;
  offload::ColumnFormat format;
};
constexpr ColumnTest kColumnTests[] = {{"column_stream_f16", offload::ColumnFormat::f16},
                                       {"column_stream_int8", offload::ColumnFormat::int8},
                                       {"column_stream_int4", offload::ColumnFormat::int4}};

// A region as the blocks of one KV head, and which of its tiles a turn reads.
class ColumnStreams {
 public:
  ColumnStreams(LinkRun& run, const PinnedRegion& region, const ColumnTest& test)
      : run_(run),
        region_(region),
        test_(test),
        arena_(run.device(), kArenaBytes),
        graphs_(run.device(), run.stream(), false),
        context_{run.device(), run.stream(), run.other(), arena_, region.pins(), order_, graphs_},
        layout_({1, 1, kHeadDim, kBlockTokens, test.format}),
        components_(kHeadDim) {
    std::iota(components_.begin(), components_.end(), 0);
    std::shuffle(components_.begin(), components_.end(), std::mt19937(1));
    components_.resize(kRank);
    std::sort(components_.begin(), components_.end());
    // Blocks lie as far apart as an arena puts them, and none lies in two registrations.
    const std::uint64_t apart =
        (layout_.block_bytes + offload::Arena::alignment - 1) / offload::Arena::alignment * offload::Arena::alignment;
    for (std::uint64_t at = 0; at + layout_.block_bytes <= region.bytes(); at += apart) {
      const std::uint64_t end = at + layout_.block_bytes - 1;
      if (at / kLinkPinBytes == end / kLinkPinBytes) blocks_.push_back(region.host() + at);
    }
    view_.layout = &layout_;
    take(blocks_.size());
  }

  bool empty() const { return blocks_.empty(); }

  void measure() {
    choose_tiles();
    const auto piece = layout_.column_bytes;
    run_.clear_wrong();
    const double read = run_.seconds([&](int) { gather(0, static_cast<int>(tiles_.size())); });
    run_.require_right(test_.name);
    run_.add(test_.name, "sm", LinkRun::gigabytes(bytes(), read), "GB/s", piece);
    run_.clear_wrong();
    const double copied = run_.live_seconds([&](int) { copy(1); });
    run_.require_right(test_.name);
    run_.add(test_.name, "ce", LinkRun::gigabytes(bytes(), copied), "GB/s", piece);
    run_.clear_wrong();
    const double together = run_.live_seconds([&](int) { copy(2); });
    run_.require_right(test_.name);
    run_.add(test_.name, "both", LinkRun::gigabytes(bytes(), together), "GB/s", piece);
  }

 private:
  void take(std::size_t blocks) {
    view_.blocks = std::span(blocks_).first(blocks);
    view_.tokens = static_cast<std::int64_t>(blocks) * kBlockTokens;
  }
  ColumnTiles make_tiles() const { return {context_, view_, components_, {kRank, kRank}, std::nullopt, run_.stream()}; }

  // Whole tiles evenly over the region, as many as a layer has; some of them more than once where it is small.
  void choose_tiles() {
    if (make_tiles().tokens() > view_.tokens) take(std::bit_floor(blocks_.size()));
    tile_tokens_ = make_tiles().tokens();
    tile_blocks_ = tile_tokens_ / kBlockTokens;
    const std::int64_t there = view_.tokens / tile_tokens_;
    const std::uint64_t tile_bytes = static_cast<std::uint64_t>(tile_blocks_) * kRank * run_bytes();
    const auto wanted = static_cast<std::int64_t>(
        std::min(kLayerTokens / static_cast<std::uint64_t>(tile_tokens_), region_.bytes() / 8 / tile_bytes));
    const std::int64_t count = std::max<std::int64_t>(2, wanted);
    std::vector<std::int64_t> columns, scales;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t tile = count <= there ? i * there / count : i % there;
      tiles_.push_back({0, tile * tile_tokens_, (tile + 1) * tile_tokens_});
      for (std::int64_t block = tile * tile_blocks_; block < (tile + 1) * tile_blocks_; ++block) {
        const std::byte* const data = blocks_[static_cast<std::size_t>(block)];
        for (const int component : components_) {
          columns.push_back(unit(layout_.column(data, 0, component)));
          if (layout_.scale_bytes) {
            scales.push_back(unit(reinterpret_cast<const std::byte*>(layout_.scales(data, 0, component))));
          }
        }
      }
    }
    columns_.emplace(run_, columns);
    if (!scales.empty()) scales_.emplace(run_, scales);
  }

  std::int64_t unit(const std::byte* data) const { return (data - region_.host()) / static_cast<int>(kLinkUnit); }
  std::uint64_t run_bytes() const { return layout_.column_bytes + layout_.scale_bytes; }
  std::uint64_t bytes() const { return tiles_.size() * static_cast<std::uint64_t>(tile_blocks_) * kRank * run_bytes(); }

  // The runs of tiles [first, first + count), as kernels find them.
  LinkRuns runs_of(const std::optional<LinkStarts>& starts, std::uint64_t each, int first, int count) const {
    if (!starts) return {};
    const std::int64_t per_tile = tile_blocks_ * kRank;
    return {starts->data() + first * per_tile, count * per_tile, std::countr_zero(each / kLinkUnit)};
  }
  LinkRuns columns(int first, int count) const { return runs_of(columns_, layout_.column_bytes, first, count); }
  LinkRuns scales(int first, int count) const { return runs_of(scales_, layout_.scale_bytes, first, count); }

  void gather(int first, int count) {
    launch("link_gather", link_gather, run_.grid(), run_.stream(), region_.device(), columns(first, count),
           scales(first, count), run_.wrong());
  }

  // The tiles in turn, as a step goes through them: the first of every `among` is copied, those behind it are read in
  // place meanwhile. What was copied is looked at when it is there, in the place of a scan.
  void copy(int among) {
    ColumnTiles tiles = make_tiles();
    const int all = static_cast<int>(tiles_.size());
    tiles.fetch(tiles_.front());
    for (int i = 0; i < all; i += among) {
      const ColumnSource source = tiles.ready();
      if (i + among < all) tiles.fetch(tiles_[static_cast<std::size_t>(i + among)]);
      if (const int here = std::min(among, all - i) - 1; here > 0) gather(i + 1, here);
      launch("link_check_tile", link_check_tile, run_.grid(), run_.stream(),
             reinterpret_cast<const uint4*>(source.base),
             reinterpret_cast<const uint4*>(source.base + source.scales_offset), columns(i, 1), scales(i, 1), kRank,
             run_.wrong());
    }
  }

  LinkRun& run_;
  const PinnedRegion& region_;
  const ColumnTest test_;
  DeviceArena arena_;
  StreamOrder order_;
  StepGraphs graphs_;
  const DeviceContext context_;
  const offload::BlockLayout layout_;
  std::vector<std::int32_t> components_;
  std::vector<const std::byte*> blocks_;
  offload::LayerView view_;
  std::int64_t tile_tokens_ = 0;
  std::int64_t tile_blocks_ = 0;
  std::vector<ColumnRange> tiles_;  // that a turn reads
  std::optional<LinkStarts> columns_;
  std::optional<LinkStarts> scales_;
};

}  // namespace

void measure_columns(LinkRun& run, const PinnedRegion& region) {
  for (const ColumnTest& test : kColumnTests) {
    ColumnStreams streams(run, region, test);
    if (streams.empty()) return run.skip("column streams", "the footprint is smaller than a block");
    streams.measure();
  }
}

}  // namespace hayloft::gpu::cuda
