#pragma once

#include <cstdint>
#include <span>

#include "runtime/attention/method.h"

// Observers of decode steps, for measuring what a method does.
namespace hayloft::runtime {

// Called by the thread that decodes; the step waits until it returns.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // Called once for each step and global layer, in their order, before the layer attends: only the steps that are
  // wanted are traced and passed to see(). `position` is that of the step's token.
  virtual bool wants(int layer, std::int64_t position) = 0;
  // The step as it has just been done, traced, and the method that attended: of `auto`, the one that was chosen. Valid
  // during the call only.
  virtual void see(const Step& step, const Method& by) = 0;
  // Called where a layer is a mixture of `of` experts, behind its attention: those that the token goes through,
  // ascending.
  virtual void see_experts(int /*layer*/, std::int64_t /*position*/, int /*of*/, std::span<const int> /*chosen*/) {}

  // Returns how many tokens, that of `position` the first, it would not want in any layer, so that they may be decoded
  // together by exact attention, without asking; it is told how many were. It wants every token unless it says more.
  virtual std::int64_t unwanted_from(std::int64_t /*position*/) const { return 0; }
  virtual void passed_over(std::int64_t /*tokens*/) {}
};

}  // namespace hayloft::runtime
