// Uses the lowest and the highest library of the package: a store with one block, and a tokenizer that reads from
// memory.
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "offload/host/arena.h"
#include "offload/host/topology.h"
#include "offload/store/store.h"
#include "runtime/tokenizer/tokenizer.h"

namespace {

void require(bool holds, std::string_view what) {
  if (!holds) hayloft::fail("not so: {}", what);
}

void store_keeps_what_was_committed() {
  const hayloft::offload::Topology topology;
  hayloft::offload::Arena arena(topology, {.budget_bytes = 64 << 20});
  const hayloft::offload::StoreShape shape{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
  hayloft::offload::Store store(arena, shape);
  std::vector<hayloft::f16> rows(16 * 2 * 8, hayloft::to_f16(1.0f));
  auto block = store.start_block();
  fill_block(store.layout(), block.data(), 0, rows.data(), 2 * 8, 16);
  store.commit(0, std::move(block), 16);
  require(store.tokens(0) == 16, "the store holds 16 tokens");
  require(store.layer(0).value_sum[0] == 16.0f, "the value sum is that of 16 ones");
}

void damaged_tokenizer_is_an_error() {
  try {
    hayloft::runtime::Tokenizer::from_json("{", "memory");
  } catch (const hayloft::Error&) {
    return;
  }
  require(false, "a damaged tokenizer.json is refused");
}

}  // namespace

int main() {
  try {
    store_keeps_what_was_committed();
    damaged_tokenizer_is_an_error();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
