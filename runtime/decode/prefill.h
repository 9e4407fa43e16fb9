#pragma once

#include <cstdint>
#include <string>

#include "gpu/backend.h"
#include "runtime/attention/attender.h"

// Says how the global layers attend while a prompt is read in chunks. With S tokens, N of them in the store when a
// chunk begins and p the position of a query in that chunk, the query attends to
//
//   exact   [0, p].
//   window  [0, s) and (p - w, p]: StreamingLLM (arXiv 2309.17453) and LM-Infinite (arXiv 2308.16137), but for their
//           shift of positions (gpu::CausalWindow). Time is linear in S.
//   topk    [L, p] and, for each query head, the k positions of [0, L) with the largest inner products, where
//           L = min(N, max(0, p + 1 - w)); all of [0, L) when k >= L. Top-k attention, arXiv 2502.06766, section 3.4.
//           Every query searches all keys before L, near the memory, those of some tokens together in one pass over
//           them: time still grows with the square of S, at the price of a scan of K instead of attention over K and V.
//           N is a matter of how the prompt is cut, so the
//           chunk size is part of the result, unless w is so long that L = p + 1 - w always: at least the chunk, a
//           block and the window of the cache together.
//   sparse  the blocks of keys that hold the wanted share of the softmax, chosen for each block of queries and KV head
//           by some of its queries, which are scored exactly (gpu::SparseCausal); the first block, and the block of
//           queries itself, always. By fidelity other queries, which have no part in the order of the blocks, say when
//           enough are chosen. The chunk size is part of the result here, too. What was caught is measured by queries
//           that had no part in the choice (gpu::SparseRead).
//
// Sliding-window layers keep to their own window. The answer's tokens are another matter: see Method.
namespace hayloft::runtime {

// Says which positions a prompt attends to in global layers, and in which order it is computed.
struct PrefillOptions {
  // The positions that a query keeps, as defined above.
  enum class Kind : std::uint8_t { exact, window, topk, sparse };
  // The loop that is outside; the result is the same bit for bit. automatic: what moves fewer bytes (plan_prefill.h).
  enum class Order : std::uint8_t { automatic, chunk, layer };
  Kind kind = Kind::exact;
  std::int64_t window = 4096;  // w, the query's own position counted in
  std::int64_t sinks = 4;      // s, of `window`
  Budget k{1024, 0};           // k, of `topk`: besides the window; a share is one of p + 1
  gpu::SparseCausal sparse = {};
  Order order = Order::automatic;
};

const char* name(PrefillOptions::Kind kind);  // "exact", "window", "topk", "sparse"

// "exact", "window w=4096 s=4", "topk k=1024 w=4096", "sparse mass=98%", "sparse fidelity=97%".
std::string prefill_label(const PrefillOptions& options);

// True where a prompt of `tokens` is so short that `window` and `topk` leave no position of it out. Of `sparse`, whose
// figures say it (left_out), false.
bool reads_all(const PrefillOptions& options, std::int64_t tokens);

// Throws Error naming the option that is out of range.
void check_prefill(const PrefillOptions& options);

// The newest `rows` positions of one global layer: q and out are f32 [rows][Hq][d], device. The layer's scratch holds
// the positions that were searched for. Adds to `read` what `sparse` has read.
void attend_prefill(const LayerStep& at, const float* q, int rows, const PrefillOptions& options,
                    const Attender& attender, float* out, gpu::SparseRead& read);

}  // namespace hayloft::runtime
