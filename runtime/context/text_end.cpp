#include "runtime/context/text_end.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "offload/byte_stream.h"
#include "offload/error.h"
#include "runtime/context/ingest.h"

namespace hayloft::runtime {
namespace {

// The bytes: i64 tokens before the end, i64 tokens in it, their ids i32; then for each layer of the model i64 rows,
// the newest ones, and the rows f16 [Hkv][rows][2 d]; then room.
struct TextEnd {
  std::vector<offload::SnapshotTail> layers;
};

// The newest rows of a tail, from token `first` on as far as it has them.
offload::SnapshotTail newest(const offload::SnapshotTail& tail, std::int64_t first, int kv_heads, int head_dim) {
  const std::int64_t skipped = std::max<std::int64_t>(0, first - tail.position);
  const std::int64_t per_row = 2 * head_dim;
  offload::SnapshotTail end{tail.store_layer, tail.position + skipped, tail.tokens - skipped, {}, {}};
  for (int head = 0; head < kv_heads; ++head) {
    const auto from = tail.rows.begin() + (head * tail.tokens + skipped) * per_row;
    end.rows.insert(end.rows.end(), from, from + end.tokens * per_row);
  }
  return end;
}

std::optional<TextEnd> decode(std::span<const std::byte> bytes, const Session& session,
                              std::span<const std::int32_t> tokens) {
  const ModelConfig& config = session.config();
  ByteReader reader(bytes, "the end of the text ends too early");
  if (reader.number<std::int64_t>() != session.tokens()) return std::nullopt;
  if (reader.number<std::int64_t>() != static_cast<std::int64_t>(tokens.size())) return std::nullopt;
  if (!std::ranges::equal(reader.array<std::int32_t>(tokens.size()), tokens)) return std::nullopt;
  const auto count = static_cast<std::int64_t>(tokens.size());
  TextEnd end;
  for (int at = 0; at < config.layers; ++at) {
    const std::int64_t window = config.sliding_window[static_cast<std::size_t>(at)];
    const std::int64_t per_row = 2 * config.heads(at).width();
    const auto rows = reader.number<std::int64_t>();
    const std::int64_t needed = window > 0 ? std::min(window, count) : count;
    if (rows < needed || rows > count) return std::nullopt;
    offload::SnapshotTail& layer = end.layers.emplace_back();
    layer.tokens = rows;
    layer.rows = reader.array<f16>(static_cast<std::uint64_t>(rows * per_row));
  }
  return end;  // what is behind it is room
}

}  // namespace

PrefillRead whole_prefill_read(const offload::Snapshot& snapshot) {
  if (const auto saved = snapshot.attachment(whole_prefill_read_name)) {
    ByteReader bytes(*saved, "what was read sparsely ends too early");
    if (bytes.number<std::int64_t>() == snapshot.token_count()) {  // else of the text before it was added to
      return load_prefill_read(saved->last(bytes.left()));
    }
  }
  return saved_prefill_read(snapshot);
}

ReadEnd read_text_end(const Session& session, std::span<const std::int32_t> tokens, bool growing) {
  const ModelConfig& config = session.config();
  if (tokens.empty() || config.count(LayerKind::recurrent) > 0) return {{}, session.prefill_read()};
  const std::int64_t first = session.tokens();
  const auto count = static_cast<std::int64_t>(tokens.size());
  Session end = session.fork();
  end.share_workspace(session.workspace());
  end.hold_in_tails(count);  // blocks take some of them as they are restored: those of integers would change the rows
  end.append(tokens);
  ByteWriter bytes;
  bytes.number(first);
  bytes.number(count);
  bytes.array(tokens);
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerHeads heads = config.heads(layer);
    const offload::SnapshotTail rows = newest(end.cache().tail(layer), first, heads.kv, heads.dim);
    if (layer == 0)
      bytes.reserve(bytes.size() + static_cast<std::size_t>(config.layers) * 5 / 4 * rows.rows.size() * sizeof(f16));
    bytes.number(rows.tokens);
    bytes.array(std::span<const f16>(rows.rows));
  }
  const std::size_t step = growing ? std::max<std::size_t>(1, std::bit_floor(bytes.size()) / 4) : 1;
  bytes.pad((bytes.size() + step - 1) / step * step);
  ReadEnd read{{}, end.prefill_read()};
  read.attachments.push_back({std::string(text_end_name), bytes.take()});  // moved: a list would hold them twice
  if (!read.prefill_read.empty()) {
    ByteWriter whole;
    whole.number(first + count);
    whole.array(std::span<const std::byte>(save_prefill_read(read.prefill_read)));
    read.attachments.push_back({std::string(whole_prefill_read_name), whole.take()});
  }
  return read;
}

bool restore_text_end(Session& session, const offload::Snapshot& snapshot, std::span<const std::int32_t> tokens) {
  std::optional<TextEnd> end;
  try {
    if (const auto saved = snapshot.attachment(text_end_name)) end = decode(*saved, session, tokens);
  } catch (const Error&) {  // damaged, which inspect --verify says; reading the tokens gives the same
    return false;
  }
  if (!end) return false;
  std::vector<offload::TailImage> layers;
  for (const offload::SnapshotTail& layer : end->layers) layers.push_back(layer.image());
  session.append_rows(layers, static_cast<int>(tokens.size()));
  return true;
}

}  // namespace hayloft::runtime
