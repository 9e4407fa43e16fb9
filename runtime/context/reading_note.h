#pragma once

#include <string>
#include <string_view>

#include "runtime/attention/approximate_tokens.h"
#include "runtime/decode/prefill.h"

// Says how a saved context was read, in the note of its snapshot: words "key=value", separated by spaces, in any order.
//
//   chunk_tokens=2048                       the chunk size: chunks of another size round differently
//   prefill=window window=4096 sinks=4      PrefillOptions; without `prefill`: exact
//   prefill=topk window=4096 k=1024         or, for a share, k_share=0.01
//   products=int8                           quantised weights met inputs rounded to 8 bits, in all of it or in a part
//   checkpoints=8                           how many of its last checkpoints it keeps, where that was asked for
//   decoded_from=900 decoded=topk,k=16      tokens from that one on were decoded by steps that left positions out, by
//                                           which methods: method_label() with ',' for a space and ';' between two;
//                                           these and '%' themselves, and what is no plain ASCII, as %2C
namespace hayloft::runtime {

struct ReadingNote {
  int chunk_tokens = 0;
  PrefillOptions prefill;
  int checkpoints = 0;  // 0: as many as the model's kind needs, see kept_checkpoints()
  gpu::Products products = gpu::Products::exact;
  ApproximateTokens approximate = {};
};

std::string write_note(const ReadingNote& note);

// Returns whether every token attended to everything and no input was rounded.
bool reads_exactly(const ReadingNote& note);

// The inverse of write_note. Throws Error naming `file` when a word is missing, unknown or out of range: a context must
// not be continued in another way than it was begun.
ReadingNote read_note(std::string_view text, std::string_view file);

}  // namespace hayloft::runtime
