#pragma once

#include <vector>

#include "runtime/tokenizer/bpe/merges.h"

namespace hayloft::runtime {

class Field;

// The tokens that the "post_processor" of a tokenizer.json puts around a single text: BOS, EOS and the like.
struct Template {
  std::vector<TokenId> before, after;

  Template() = default;  // nothing

  // Throws Error naming the field if a step is damaged or not supported.
  explicit Template(const Field& post_processor);
};

}  // namespace hayloft::runtime
