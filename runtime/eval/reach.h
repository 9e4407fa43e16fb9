#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/eval/means.h"

// Says how much of a context a method attends to. The tail, fewer than a block beyond the cache's window, is always
// attended: with blocks as long as the context every method would be dense attention under another name. So evaluations
// choose the block size by the length of the context, and their tables mark what attended to most of it all the same.
namespace hayloft::runtime::eval {

// Tokens per block of the store, a power of two from 64 to 4096: a sixteenth of the context at most, so 4096 from 64k
// on. Short of 1,024 tokens, where a sixteenth is less than 64, that bound is not held.
int block_tokens_for(std::int64_t ctx_size);

// `session` for a context of this length: block_tokens 0 becomes block_tokens_for() it.
SessionOptions session_at(SessionOptions session, std::int64_t ctx_size);

// From this share of the positions on, the figures of a method say little of how it selects.
inline constexpr double most_of_context = 0.5;

// Returns whether a method (not dense attention, which is meant to) attended to most of the context, read in the first
// way: read in another it is not near dense attention, which is that behind the first.
bool attended_to_most(const Group& group);

// Returns the share of the context's positions, "3.4%".
std::string attended_percent(const Group& group);

// A line for every method and length that attended to most of the context, with its newline. Empty: there is none.
std::string reach_notes(const std::vector<Group>& groups);

}  // namespace hayloft::runtime::eval
