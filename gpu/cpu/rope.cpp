#include "gpu/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/cpu/elementwise.h"

namespace hayloft::gpu {
namespace {

// Tokens that share one direct sine and cosine; the others turn it by their distance, which is a table.
constexpr std::int64_t kRun = 64;

struct Turn {
  double cosine;
  double sine;
};

Turn turn_by(double position, float inverse_frequency) {
  const double angle = position * static_cast<double>(inverse_frequency);
  return {std::cos(angle), std::sin(angle)};
}

}  // namespace

void CpuBackend::rope(float* x, int T, int heads, int d, std::int64_t position, const Rope& rope, Stream) {
  const int half = rope.pairs_of(d);
  const double magnitude = rope.magnitude;
  const std::int64_t run = std::min<std::int64_t>(kRun, T);
  std::vector<Turn> steps(static_cast<std::size_t>(run * half));  // [run][half]
  for (std::int64_t t = 0; t < run; ++t) {
    for (int i = 0; i < half; ++i) steps[t * half + i] = turn_by(static_cast<double>(t), rope.inverse_frequency[i]);
  }
  threads_.parallel_for((T + kRun - 1) / kRun, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Turn> base(half);
    std::vector<float> cosine(half);
    std::vector<float> sine(half);
    for (std::int64_t r = begin; r < end; ++r) {
      for (int i = 0; i < half; ++i) {
        base[i] = turn_by(static_cast<double>(position + r * kRun), rope.inverse_frequency[i]);
        base[i] = {base[i].cosine * magnitude, base[i].sine * magnitude};
      }
      for (std::int64_t t = r * kRun; t < std::min<std::int64_t>((r + 1) * kRun, T); ++t) {
        const Turn* step = steps.data() + (t - r * kRun) * half;
        for (int i = 0; i < half; ++i) {  // cos(a + b) and sin(a + b), good to a few units of double's last place
          cosine[i] = static_cast<float>(base[i].cosine * step[i].cosine - base[i].sine * step[i].sine);
          sine[i] = static_cast<float>(base[i].sine * step[i].cosine + base[i].cosine * step[i].sine);
        }
        for (int h = 0; h < heads; ++h) rotate_head(x + (t * heads + h) * d, half, cosine.data(), sine.data());
      }
    }
  });
}

}  // namespace hayloft::gpu
