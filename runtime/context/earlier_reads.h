#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "offload/snapshot/writer.h"
#include "runtime/decode/prefill_read.h"

namespace hayloft::runtime {

// Names the attachment that has them: u32 entries, of each i64 tokens, u64 bytes and so many, of save_prefill_read().
inline constexpr std::string_view earlier_reads_name = "prefill read, earlier";

// Says what had been read sparsely at each of the checkpoints that a context keeps: whoever goes back to one goes on
// from there.
class EarlierReads {
 public:
  // Begins with nothing, in a context that keeps so many checkpoints.
  explicit EarlierReads(int checkpoints);
  // Begins with what an attachment holds. Throws Error where that is damaged.
  EarlierReads(std::span<const std::byte> saved, int checkpoints);
  // Begins with what a context says. Throws Error naming the file where that is damaged.
  EarlierReads(const offload::Snapshot& snapshot, int checkpoints);

  // Returns what had been read at a checkpoint of so many tokens; none where nobody knows. Throws Error, without the
  // name of the file, where that is damaged.
  std::optional<PrefillRead> at(std::int64_t tokens) const;
  // Adds a checkpoint; later ones, from which the context has gone back, are forgotten.
  void add(std::int64_t tokens, const PrefillRead& read);
  // Returns whether there is nothing to be saved: a context that keeps one checkpoint needs none of it, but one that
  // has kept more is not left with what was true of them.
  bool empty() const { return !saved_ && (most_ < 2 || reads_.empty()); }
  // Returns it as it is saved.
  offload::SnapshotAttachment attachment() const;

 private:
  std::size_t most_;
  bool saved_ = false;                                    // a context had some already
  std::map<std::int64_t, std::vector<std::byte>> reads_;  // by tokens
};

// Returns what had been read sparsely at `then`, a checkpoint that `whole` goes back to, or `whole` itself; none where
// nobody knows, as of a context that was read sparsely and saved without that. Throws Error naming the file where it is
// damaged.
std::optional<PrefillRead> prefill_read_at(const offload::Snapshot& whole, const offload::Snapshot& then);

}  // namespace hayloft::runtime
