#pragma once

#include <cstdint>
#include <span>

namespace hayloft::runtime {

// Forbids the tokens that an answer may not go on with, by what it has so far: a grammar's. Of one answer; not
// thread-safe.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  virtual void apply(std::span<float> logits /* [vocab] */) = 0;  // -infinity where the token is forbidden
  virtual void accept(std::int32_t token) = 0;                    // the answer goes on with it
  virtual bool finished() const = 0;                              // nothing but the end may follow
};

}  // namespace hayloft::runtime
