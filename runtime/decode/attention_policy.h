#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "gpu/backend.h"
#include "runtime/attention/step.h"

namespace hayloft::runtime {

// Says how the global layers of a model attend in a forward pass, which knows nothing else about it: PrefillAttention
// while a prompt is read, DecodeAttention for one token. q and out are f32 [.][Hq][d] in memory of the device, in the
// order of the tokens; q is rotated and normed.
class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;

  // Counts the newest tokens whose queries are to be shown in this layer, though none may attend: 0 to T. Asked
  // where not all of them attend.
  virtual int queries_wanted(const LayerStep&) const { return 0; }
  // The output of the newest `rows` tokens, 0 to T, where q has the queries of the newest `queries`: at least as many
  // as attend and as are wanted.
  virtual void attend(const LayerStep& at, const float* q, int queries, int rows, float* out) = 0;
  // True where each of the rows attends as it would alone, to the bit, in every kind of layer.
  virtual bool each_as_alone() const { return false; }
  // attend() of one row, which may be left to the caller, who does it for several sequences at once
  // (gpu::Backend::attend_together): what q is to attend to; none where `out` is done.
  virtual std::optional<gpu::Attended> attend_or_leave(const LayerStep& at, const float* q, float* out) {
    attend(at, q, 1, 1, out);
    return {};
  }
  // Returns whether somebody watches what a single token goes through; then see_experts() is called, as that of
  // StepObserver.
  virtual bool is_watched() const { return false; }
  virtual void see_experts(int /*layer*/, std::int64_t /*position*/, int /*of*/, std::span<const int> /*chosen*/) {}
};

}  // namespace hayloft::runtime
