#include "runtime/plan/verb_clock.h"

#include <chrono>

namespace hayloft::runtime::plan {

template <class Verb>
void VerbClock::time(const char* verb_name, gpu::Stream stream, const Verb& verb) {
  inner_.synchronize(stream);
  const auto before = std::chrono::steady_clock::now();
  verb();
  inner_.synchronize(stream);
  seconds_[verb_name] += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

void VerbClock::attend_causal(const gpu::CacheView& cache, const float* q, int T, int query_heads,
                              const gpu::CausalWindow& window, float* out, gpu::Stream stream) {
  time("attend_causal", stream, [&] { inner_.attend_causal(cache, q, T, query_heads, window, out, stream); });
}

void VerbClock::attend(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::Attended& what,
                       float* out, gpu::Stream stream) {
  time("attend", stream, [&] { inner_.attend(cache, q, query_heads, what, out, stream); });
}

void VerbClock::select_sparq(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::SparqSelect& args,
                             std::int32_t* positions, float* alpha, gpu::Stream stream) {
  time("select_sparq", stream, [&] { inner_.select_sparq(cache, q, query_heads, args, positions, alpha, stream); });
}

void VerbClock::select_exact(const gpu::CacheView& cache, const float* q, int query_heads, const gpu::ExactSelect& args,
                             std::int32_t* positions, gpu::Stream stream) {
  time("select_exact", stream, [&] { inner_.select_exact(cache, q, query_heads, args, positions, stream); });
}

}  // namespace hayloft::runtime::plan
