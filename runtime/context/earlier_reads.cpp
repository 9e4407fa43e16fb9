#include "runtime/context/earlier_reads.h"

#include <string>

#include "offload/byte_stream.h"
#include "offload/error.h"
#include "runtime/context/ingest.h"
#include "runtime/context/reading_note.h"

namespace hayloft::runtime {
namespace {

// Calls `read`, and names the file where what it holds is damaged.
template <class Read>
auto read_from(const offload::Snapshot& snapshot, const Read& read) {
  try {
    return read();
  } catch (const Error& wrong) {
    const std::string file = snapshot.path().string(), what = wrong.what();
    if (what.starts_with(file)) throw;
    fail("{}: damaged: {}; make the context again or restore the file from a copy", file, what);
  }
}

bool is_read_sparsely(const offload::Snapshot& snapshot) {
  const ReadingNote note = read_note(snapshot.description().note, snapshot.path().string());
  return note.prefill.kind == PrefillOptions::Kind::sparse;
}

}  // namespace

EarlierReads::EarlierReads(int checkpoints) : most_(static_cast<std::size_t>(checkpoints)) {}

EarlierReads::EarlierReads(std::span<const std::byte> saved, int checkpoints) : EarlierReads(checkpoints) {
  ByteReader bytes(saved, "what earlier checkpoints had read sparsely ends too early");
  for (auto left = bytes.number<std::uint32_t>(); left > 0; --left) {
    const auto tokens = bytes.number<std::int64_t>();
    reads_[tokens] = bytes.array<std::byte>(bytes.number<std::uint64_t>());
  }
}

EarlierReads::EarlierReads(const offload::Snapshot& snapshot, int checkpoints) : EarlierReads(checkpoints) {
  read_from(snapshot, [&] {
    if (const auto saved = snapshot.attachment(earlier_reads_name)) {
      *this = EarlierReads(*saved, checkpoints);
      saved_ = true;
    }
  });
}

std::optional<PrefillRead> EarlierReads::at(std::int64_t tokens) const {
  const auto found = reads_.find(tokens);
  if (found == reads_.end()) return std::nullopt;
  return load_prefill_read(found->second);
}

void EarlierReads::add(std::int64_t tokens, const PrefillRead& read) {
  reads_.erase(reads_.lower_bound(tokens), reads_.end());
  reads_[tokens] = save_prefill_read(read);
  while (reads_.size() > most_) reads_.erase(reads_.begin());
}

offload::SnapshotAttachment EarlierReads::attachment() const {
  ByteWriter bytes;
  bytes.number(static_cast<std::uint32_t>(reads_.size()));
  for (const auto& [tokens, read] : reads_) {
    bytes.number(tokens);
    bytes.number(static_cast<std::uint64_t>(read.size()));
    bytes.array(std::span<const std::byte>(read));
  }
  return {std::string(earlier_reads_name), bytes.take()};
}

std::optional<PrefillRead> prefill_read_at(const offload::Snapshot& whole, const offload::Snapshot& then) {
  if (then.cached_tokens() == 0) return PrefillRead{};
  if (then.attachment(prefill_read_name)) return saved_prefill_read(then);
  if (!whole.attachment(prefill_read_name)) {
    return is_read_sparsely(whole) ? std::nullopt : std::optional(PrefillRead{});
  }
  return read_from(whole, [&] { return EarlierReads(whole, 1).at(then.cached_tokens()); });
}

}  // namespace hayloft::runtime
