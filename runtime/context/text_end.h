#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "offload/snapshot/writer.h"
#include "runtime/decode/session.h"

// The end of a saved text: the tokens behind its last whole chunk, fewer than a chunk. A context's tails end where they
// begin, so that what is appended is read in the chunks that one go would have; what the end itself gave is saved
// beside, as an attachment, and need not be read again each time the context is opened.
namespace hayloft::runtime {

inline constexpr std::string_view text_end_name = "text end";  // of the attachment
// Names another, of a text that was read sparsely: i64 tokens of the text, then save_prefill_read() of all of it.
inline constexpr std::string_view whole_prefill_read_name = "prefill read, whole";

// Returns what a saved text has read sparsely, its end counted in where that was saved. Throws Error where that is
// damaged.
PrefillRead whole_prefill_read(const offload::Snapshot& snapshot);

// The end of a text as it was read.
struct ReadEnd {
  std::vector<offload::SnapshotAttachment> attachments;  // what a reader of the context needs
  PrefillRead prefill_read;                              // of the whole text; of what is before the end without one
};

// Reads `tokens` in a fork of the session, whose end they are behind. No attachments where there are no tokens or the
// model's layers keep states instead of rows. `growing`: with room behind the rows, a quarter at most, for a context
// that is appended to: ends of nearly the same size then take turns in the places that they leave.
ReadEnd read_text_end(const Session& session, std::span<const std::int32_t> tokens, bool growing = false);

// Appends `tokens`, which the session has not seen, as they were saved by read_text_end(). False, and nothing is
// appended, where the snapshot has not got them: it has none, those of other tokens, or damaged ones.
bool restore_text_end(Session& session, const offload::Snapshot& snapshot, std::span<const std::int32_t> tokens);

}  // namespace hayloft::runtime
