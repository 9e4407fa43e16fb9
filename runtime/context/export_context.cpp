#include <algorithm>
#include <iterator>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "runtime/cache/layer_rows.h"
#include "runtime/context/foreign_context.h"
#include "runtime/context/ingest.h"

namespace hayloft::runtime {
namespace {

// One half of every row, K or V, of each head in turn.
void write_half(SafetensorsWriter& out, const LayerRows& layer, int heads, int head_dim, int half) {
  const auto d = static_cast<std::size_t>(head_dim);
  std::vector<f16> run;
  for (int head = 0; head < heads; ++head) {
    layer.visit(head, [&](std::span<const f16> rows) {
      run.resize(rows.size() / 2);
      for (std::size_t t = 0; t < rows.size() / (2 * d); ++t) {
        const auto row = rows.subspan((2 * t + static_cast<std::size_t>(half)) * d, d);
        std::copy(row.begin(), row.end(), run.begin() + static_cast<std::ptrdiff_t>(t * d));
      }
      out.write(std::as_bytes(std::span(run)));
    });
  }
}

}  // namespace

ContextTokens export_context(const offload::Snapshot& snapshot, offload::Arena& arena,
                             const std::filesystem::path& output) {
  const offload::StoreShape& shape = snapshot.description().shape;
  const std::vector<std::int32_t> tokens = snapshot.tokens();
  if (snapshot.cached_tokens() == 0) {
    fail("{}: none of its {} tokens has K and V yet, so there is nothing to export", snapshot.path().string(),
         tokens.size());
  }
  const offload::Store store = snapshot.store(arena);
  const offload::BlockLayout& layout = store.layout();
  std::vector<offload::SnapshotTail> tails;
  std::vector<TensorHeader> headers{{"tokens", "I32", {static_cast<std::int64_t>(tokens.size())}}};
  for (int layer = 0; layer < snapshot.description().model_layers; ++layer) {
    tails.push_back(snapshot.tail(layer));
    if (!tails.back().state.empty()) {
      fail("{}: layer {} is recurrent, and its state is no K and V: the context cannot be exported",
           snapshot.path().string(), layer);
    }
    const bool global = tails.back().store_layer >= 0;
    if (tails.back().kv_heads != 0) {
      fail("{}: layer {} has heads of another shape than the global layers: the context cannot be exported",
           snapshot.path().string(), layer);
    }
    const std::int64_t held = tails.back().tokens + (global ? tails.back().position : 0);
    for (const char* const which : {"k", "v"}) {
      headers.push_back({fmt::format("layer.{}.{}", layer, which), "F16", {shape.kv_heads, held, shape.head_dim}});
    }
  }
  // The way it was read goes with K and V, which would else be taken for exact.
  const ReadingNote note = carried_note(snapshot);
  std::vector<std::int32_t> reading;
  if (!reads_exactly(note)) std::ranges::copy(write_note(note), std::back_inserter(reading));
  if (!reading.empty()) {
    headers.push_back({reading_name, "I32", {static_cast<std::int64_t>(reading.size())}});
  }
  SafetensorsWriter out(output, headers);
  out.write(std::as_bytes(std::span(tokens)));
  for (const offload::SnapshotTail& tail : tails) {
    const LayerRows rows{tail.store_layer >= 0 ? store.layer(tail.store_layer) : offload::LayerView{&layout, {}, 0, {}},
                         tail.image()};
    for (const int half : {0, 1}) write_half(out, rows, shape.kv_heads, shape.head_dim, half);
  }
  out.write(std::as_bytes(std::span(reading)));
  offload::check_mapped_files();
  out.commit();
  return {static_cast<std::int64_t>(tokens.size()), snapshot.cached_tokens()};
}

}  // namespace hayloft::runtime
