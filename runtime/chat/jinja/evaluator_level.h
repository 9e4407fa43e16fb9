#pragma once

#include "offload/error.h"
#include "runtime/chat/jinja/evaluator.h"

namespace hayloft::runtime::jinja {

// One level of recursion deeper; throws Error beyond the limit.
class Evaluator::Level {
 public:
  explicit Level(Evaluator& evaluator) : evaluator_(evaluator) {
    if (++evaluator_.level_ <= evaluator_.limits_.depth) return;
    --evaluator_.level_;
    fail("blocks, expressions and macros run more than {} deep in one another", evaluator_.limits_.depth);
  }
  ~Level() { --evaluator_.level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Evaluator& evaluator_;
};

}  // namespace hayloft::runtime::jinja
