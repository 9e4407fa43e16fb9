#include "runtime/decode/prefill.h"

#include <algorithm>

#include "index/scan/exact_search.h"
#include "offload/error.h"

namespace hayloft::runtime {
namespace {

// Positions that go to the device at a time: enough that it computes for long, in little memory.
constexpr std::int64_t most_list_bytes = std::int64_t{16} << 20;

void attend_topk(const LayerStep& layer, const float* q, int T, const PrefillOptions& options, float* out) {
  gpu::Backend& backend = layer.backend;
  const gpu::Stream stream = layer.stream;
  const gpu::CacheView& cache = layer.cache;
  const int query_heads = layer.query_heads;
  MethodScratch& scratch = layer.scratch;
  const std::int64_t S = cache.tokens();
  const std::int64_t width = layer.query_elements();
  const auto limit_of = [&](std::int64_t seen) {  // L of the query that sees `seen` positions
    return std::min(cache.store.tokens, std::max<std::int64_t>(0, seen - options.window));
  };

  // The first queries may have nothing to choose: they attend to everything, all at once, as if the chunk ended there.
  const std::int64_t first = S - T;
  int whole = 0;
  while (whole < T && options.k.of(first + whole + 1) >= limit_of(first + whole + 1)) ++whole;
  gpu::CacheView begun = cache;
  begun.tail.tokens -= T - whole;
  backend.attend_causal(begun, q, whole, query_heads, {}, out, stream);
  if (whole == T) return;

  // The search runs near the memory. The queries come to the host together, and positions go back for many of them at a
  // time, so that the device attends by some while those of the next are searched for.
  std::vector<float> queries(static_cast<std::size_t>((T - whole) * width));
  backend.to_host(queries.data(), q + whole * width, queries.size() * sizeof(float), stream);
  const std::int64_t list = query_heads * std::min(options.k.of(S), limit_of(S));
  const auto at_once = static_cast<int>(std::clamp<std::int64_t>(
      most_list_bytes / (list * static_cast<std::int64_t>(sizeof(std::int32_t))), 1, T - whole));
  std::vector<std::int32_t> found(static_cast<std::size_t>(at_once * list));
  if (scratch.positions.bytes() < found.size() * sizeof(std::int32_t)) {
    scratch.positions = backend.allocate(found.size() * sizeof(std::int32_t), stream);
  }
  for (int begin = whole; begin < T; begin += at_once) {
    std::vector<index::ListSize> sizes;
    std::vector<gpu::Attended> attended;
    std::int64_t used = 0;  // of `found`
    for (int t = begin; t < std::min(T, begin + at_once); ++t) {
      const std::int64_t seen = first + t + 1;
      const std::int64_t limit = limit_of(seen);
      sizes.push_back({limit, static_cast<int>(std::min(options.k.of(seen), limit))});
      gpu::Attended what;
      what.positions = scratch.positions.as<std::int32_t>() + used;
      what.lists = query_heads;
      what.k = sizes.back().k;
      what.ranges[0] = {limit, seen};
      attended.push_back(what);
      used += static_cast<std::int64_t>(query_heads) * what.k;
    }
    index::search_exact_tokens(cache.store, queries.data() + (begin - whole) * width, query_heads, sizes,
                               backend.threads(), found.data());
    backend.to_device(scratch.positions.as<void>(), found.data(),
                      static_cast<std::uint64_t>(used) * sizeof(std::int32_t), stream);
    for (std::size_t i = 0; i < attended.size(); ++i) {
      const std::int64_t at = (begin + static_cast<std::int64_t>(i)) * width;
      backend.attend(cache, q + at, query_heads, attended[i], out + at, stream);
    }
  }
}

}  // namespace

const char* name(PrefillOptions::Kind kind) {
  switch (kind) {
    case PrefillOptions::Kind::window:
      return "window";
    case PrefillOptions::Kind::topk:
      return "topk";
    case PrefillOptions::Kind::sparse:
      return "sparse";
    case PrefillOptions::Kind::exact:
      break;
  }
  return "exact";
}

std::string prefill_label(const PrefillOptions& options) {
  switch (options.kind) {
    case PrefillOptions::Kind::window:
      return fmt::format("window w={} s={}", options.window, options.sinks);
    case PrefillOptions::Kind::topk:
      return fmt::format("topk k={} w={}", options.k.text(), options.window);
    case PrefillOptions::Kind::sparse:
      if (options.sparse.fidelity > 0) return fmt::format("sparse fidelity={:g}%", 100 * options.sparse.fidelity);
      if (options.sparse.density > 0) return fmt::format("sparse density={:g}%", 100 * options.sparse.density);
      return fmt::format("sparse mass={:g}%", 100 * options.sparse.mass);
    case PrefillOptions::Kind::exact:
      break;
  }
  return "exact";
}

bool reads_all(const PrefillOptions& options, std::int64_t tokens) {
  switch (options.kind) {
    case PrefillOptions::Kind::exact:
      return true;
    case PrefillOptions::Kind::window:
      return tokens <= options.window + options.sinks;
    case PrefillOptions::Kind::topk:
      return tokens <= options.window + options.k.of(tokens);
    case PrefillOptions::Kind::sparse:
      break;
  }
  return false;
}

void check_prefill(const PrefillOptions& options) {
  const gpu::SparseCausal& sparse = options.sparse;
  if (!(sparse.mass > 0 && sparse.mass <= 1)) {
    fail("--prefill sparse:mass={:g}%: a share of the softmax above 0% and up to 100%", 100 * sparse.mass);
  }
  if (!(sparse.density >= 0 && sparse.density <= 1)) {
    fail("--prefill sparse:density={:g}%: a share of the keys above 0% and up to 100%", 100 * sparse.density);
  }
  if (!(sparse.fidelity >= 0 && sparse.fidelity <= 1)) {
    fail("--prefill sparse:fidelity={:g}%: a share of the softmax above 0% and up to 100%", 100 * sparse.fidelity);
  }
  if (options.window < 1)
    fail("--prefill-window {}: a query attends to itself at least; use 1 or more", options.window);
  if (options.sinks < 0) fail("--prefill-sinks {}: cannot be negative", options.sinks);
  if (options.k.count < 0 || (options.k.count == 0 && !(options.k.share > 0 && options.k.share <= 1))) {
    fail("--prefill-k {}: a number of positions, or a share of the context above 0% and up to 100%", options.k.text());
  }
}

void attend_prefill(const LayerStep& at, const float* q, int rows, const PrefillOptions& options,
                    const Attender& attender, float* out, gpu::SparseRead& read) {
  switch (options.kind) {
    case PrefillOptions::Kind::exact:
      return attender.attend_causal(at, q, rows, {}, out);
    case PrefillOptions::Kind::window:
      return attender.attend_causal(at, q, rows, {options.window, options.sinks}, out);
    case PrefillOptions::Kind::topk:
      return attend_topk(at, q, rows, options, out);
    case PrefillOptions::Kind::sparse:
      return at.backend.attend_causal_sparse(at.cache, q, rows, at.query_heads, options.sparse, out, read, at.stream);
  }
}

}  // namespace hayloft::runtime
