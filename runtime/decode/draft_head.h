#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/host/arena.h"
#include "runtime/cache/cache.h"
#include "runtime/decode/model.h"

namespace hayloft::runtime {

// Keeps for one text what the model's head has that predicts further tokens (Model::head): keys and values of the
// newest positions, and the model's state behind the last token, which the token that comes next is joined with. It is
// told of every token, with the model's states, in order; where some have come to the text untold, as those of a saved
// context have, it begins anew behind them. Positions are counted from there, as only distances matter. Nothing of it
// is saved. Not thread-safe; the model and the arena must outlive it.
class DraftHead {
 public:
  DraftHead(const Model& head, offload::Arena& arena);
  // Returns one for the text's first `tokens`: begun anew, unless those are all that it was told of.
  DraftHead fork_at(std::int64_t tokens) const;

  // Tokens that follow `before` others, with the model's states behind each, f32 [tokens][hidden] in memory of the
  // device.
  void read(std::int64_t before, std::span<const std::int32_t> tokens, const float* states, Workspace& workspace);

  // Returns whether the head knows the model's state behind so many tokens, which are all of the text.
  bool knows(std::int64_t tokens) const { return state_ && told_ == tokens; }

  // Drafts up to `most` tokens behind `token`, which follows those that it was told of: draw(logits) says each of them.
  // Fewer where a number is not finite. Nothing of it is left then. knows() has been asked.
  std::vector<std::int32_t> draft(std::int32_t token, int most, Workspace& workspace,
                                  const std::function<std::int32_t(const float* logits)>& draw);

  // Returns what it keeps behind so many tokens, at most.
  static std::uint64_t kept_bytes(const Model& head, std::int64_t tokens);
  // Returns what reading and drafting takes of the device's memory at most, with what it keeps.
  std::uint64_t bytes_to_read() const;
  std::uint64_t device_bytes() const { return cache_.device_bytes() + state_.bytes(); }
  gpu::CacheView view() const { return cache_.view(0); }
  const Model& model() const { return *head_; }

 private:
  DraftHead(const DraftHead& other, Cache cache);
  void begin();
  static Workspace& own(Workspace& workspace);

  const Model* head_;
  offload::Arena* arena_;
  Cache cache_;
  gpu::Buffer state_;      // f32 [hidden], behind the last token; empty: not known
  std::int64_t told_ = 0;  // how many tokens the text had then
};

}  // namespace hayloft::runtime
