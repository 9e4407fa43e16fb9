#include "runtime/context/earlier_reads.h"

#include <string>

#include "offload/byte_stream.h"
#include "offload/error.h"
#include "runtime/context/ingest.h"

namespace hayloft::runtime {

EarlierReads::EarlierReads(int checkpoints) : most_(static_cast<std::size_t>(checkpoints)) {}

EarlierReads::EarlierReads(std::span<const std::byte> saved, int checkpoints) : EarlierReads(checkpoints) {
  ByteReader bytes(saved, "what earlier checkpoints had read sparsely ends too early");
  for (auto left = bytes.number<std::uint32_t>(); left > 0; --left) {
    const auto tokens = bytes.number<std::int64_t>();
    reads_[tokens] = bytes.array<std::byte>(bytes.number<std::uint64_t>());
  }
}

EarlierReads::EarlierReads(const offload::Snapshot& snapshot, int checkpoints) : EarlierReads(checkpoints) {
  try {
    if (const auto saved = snapshot.attachment(earlier_reads_name)) *this = EarlierReads(*saved, checkpoints);
  } catch (const Error& wrong) {
    const std::string file = snapshot.path().string(), what = wrong.what();
    if (what.starts_with(file)) throw;
    fail("{}: damaged: {}; make the context again or restore the file from a copy", file, what);
  }
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
  if (then.attachment(prefill_read_name) || !whole.attachment(prefill_read_name)) return saved_prefill_read(then);
  return EarlierReads(whole, 1).at(then.cached_tokens());
}

}  // namespace hayloft::runtime
