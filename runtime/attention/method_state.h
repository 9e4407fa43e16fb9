#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/backend.h"

namespace hayloft::runtime {

// The global layers of a model, as far as attention is concerned.
struct AttentionShape {
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// Called with how much of a long piece of work is done, in tokens times layers. Throw to stop.
using StateProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// The state that a method keeps of one sequence besides the cache: an index over the keys, projections of them, what
// has been evicted. It belongs to a session and is forked with it. `layer` counts the global layers from 0. Not
// thread-safe; forks may be used from different threads.
class MethodState {
 public:
  virtual ~MethodState() = default;

  // Shares what both have in common; what either adds later the other does not see.
  virtual std::unique_ptr<MethodState> fork() const = 0;

  // Brings it up to what the store of each layer holds; `layers` has one view per layer. Called when a context has been
  // read, and before every decoded token, when there is nearly always nothing new. If it throws, or progress does, the
  // state is as before or further on, and calling it again goes on.
  virtual void sync_with_cache(std::span<const gpu::CacheView> layers, const StateProgress& progress) = 0;

  // Returns how many of the newest queries of a chunk of T tokens of a prompt it wants to see in this layer: 0 to T.
  virtual int wants_queries(int /*layer*/, int /*T*/) const { return 0; }

  // The newest n queries of a chunk, as many as were wanted: q f32 [n][Hq][d], device memory, rotated and normed as
  // attention uses them; the last is that of the cache's last position. Chunks come in order, and the tokens count only
  // once the whole prompt has been read without an error: after one the state is dropped.
  virtual void see_queries(const gpu::CacheView& /*cache*/, const float* /*q*/, int /*n*/) {}

  // Returns what it has built, to be saved with a context, for Method::load_state(); empty where it is not worth
  // saving.
  virtual std::vector<std::byte> save() const { return {}; }

  // Over ranks the store that it is to follow is a part of the one that saved bytes are of: what was built over that is
  // let go, to be built anew by sync_with_cache(). What does not depend on where blocks lie stays.
  virtual void forget_store() {}

  virtual std::uint64_t bytes() const = 0;  // of host memory, shared parts included
};

}  // namespace hayloft::runtime
