#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/store/layout.h"
#include "runtime/attention/method_options.h"

// Methods made comparable: by what they read.
namespace hayloft::runtime::eval {

// The shape that methods are sized for.
struct ReadShape {
  std::int64_t tokens = 0;  // S, of the context
  int head_dim = 0;         // d
  int group = 1;            // query heads of a KV head
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
};

struct EqualBytes {
  std::vector<MethodOptions> methods;  // each once, in the order of `methods`, sizes ascending
  std::vector<std::string> left_out;   // one line each: what cannot be had with so few bits, and why
};

// Returns whether it reads every key whatever its options: dense, topk, flexgen and oracle do.
bool reads_every_key(const MethodOptions& method);

// Every method once for each of `bits`, sized so that a step reads, for each KV head, about `bits` bits of every
// position besides the k rows of its own k: S bits / 8 + 4 k d bytes. What spends them:
//   sparq     r = bits / (16, 8 or 4 of the column format; scales are not counted)
//   lowrank   r = bits / 16
//   pages     bounds of the smallest pages that leave something, the rest on more positions; 32 d / page bits
//   ann       centroids, then probed lists; each query head reads its own
//   window, h2o   more positions, of 32 d bits each
// Methods of reads_every_key() stay as they are, once. Throws Error for bits below 1.
EqualBytes at_equal_bytes(const std::vector<MethodOptions>& methods, const std::vector<int>& bits,
                          const ReadShape& shape);

}  // namespace hayloft::runtime::eval
