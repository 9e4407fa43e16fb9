#pragma once

#include <cstdint>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/config.h"

// The head that predicts further tokens, which Qwen 3.5's checkpoints hold behind the last layer (mtp, nextn). For
// position i it joins the embedding of token i + 1 with the model's state behind position i, as the output sees it, by
// one matrix; a decoder layer with full attention, a norm and the model's own output make of that the logits of token
// i + 2. In place of the model's state it goes on from its own. It only guesses: what it drafts is verified.
namespace hayloft::runtime {

// The head attends to so many of the newest positions.
inline constexpr std::int64_t draft_head_positions = 2048;

// Returns whether the checkpoint has a head's tensors.
bool has_draft_head(const Checkpoint& checkpoint);
// Returns whether it has one that is computed here: of one layer, with the model's embeddings and output.
bool computes_draft_head(const Checkpoint& checkpoint, const ModelConfig& config);
// Returns whether a configuration alone says so.
bool says_draft_head(const ModelConfig& config);
// Throws Error, of one line, where computes_draft_head() is false.
void require_draft_head(const Checkpoint& checkpoint, const ModelConfig& config);

// Returns the head as a model of one layer, which slides over draft_head_positions.
ModelConfig draft_head_config(const ModelConfig& config);

}  // namespace hayloft::runtime
