#include <algorithm>
#include <bit>
#include <random>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/link/kernels.cuh"
#include "gpu/cuda/link/run.h"

// Rows scattered over a region, and one small fetch after another.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kRowBytes[] = {128, 256, 512, 1024};
constexpr int kHops = 2000;  // of one latency measurement: once around the chain

double gather(LinkRun& run, const PinnedRegion& region, const std::vector<std::int64_t>& rows, std::uint64_t row) {
  const LinkStarts starts(run, rows);
  run.clear_wrong();
  const double time = run.seconds([&](int) {
    launch("link_gather", link_gather, run.grid(), run.stream(), region.device(),
           LinkRuns{starts.data(), starts.count(), std::countr_zero(row / kLinkUnit)}, LinkRuns{}, run.wrong());
  });
  run.require_right("row_gather");
  return LinkRun::gigabytes(rows.size() * row, time);
}

}  // namespace

void measure_rows(LinkRun& run, const PinnedRegion& region) {
  for (const std::uint64_t row : kRowBytes) {
    const std::uint64_t rows = region.bytes() / row;
    std::mt19937_64 random(2);
    std::vector<std::int64_t> starts(std::min(rows, kLinkPieceBytes / row));
    for (std::int64_t& start : starts) start = static_cast<std::int64_t>(random() % rows * (row / kLinkUnit));
    run.add("row_gather", "sm", gather(run, region, starts, row), "GB/s", row, "random");
    std::sort(starts.begin(), starts.end());
    run.add("row_gather", "sm", gather(run, region, starts, row), "GB/s", row, "ascending");
  }
}

void measure_latency(LinkRun& run, const PinnedRegion& region) {
  const std::uint64_t units = std::min<std::uint64_t>(region.bytes() / kLinkUnit, ~0u);
  // A closed chain of one unit in each of equal slices of the footprint, the slices in random order.
  const std::uint64_t slice = units / kHops;
  std::mt19937_64 random(3);
  std::vector<unsigned> chain(kHops);
  for (std::size_t i = 0; i < chain.size(); ++i) chain[i] = static_cast<unsigned>(i * slice + random() % slice);
  std::shuffle(chain.begin(), chain.end(), random);
  auto* words = reinterpret_cast<unsigned*>(region.host());
  for (std::size_t i = 0; i < chain.size(); ++i) {
    words[std::uint64_t{chain[i]} * 4] = chain[(i + 1) % chain.size()];
  }

  const double time = run.seconds([&](int) {
    launch("link_chase", link_chase, {dim3(1), dim3(1)}, run.stream(), region.device(), chain[0], kHops, run.wrong());
  });
  const unsigned end = run.read_wrong();
  for (const unsigned unit : chain) words[std::uint64_t{unit} * 4] = link_word(std::uint64_t{unit} * 4);
  if (end != chain[0]) refuse("link: a fetch arrived changed in host_device_latency_sm");
  run.add("host_device_latency_sm", "sm", time / kHops * 1e9, "ns", kLinkUnit, "random");
}

}  // namespace hayloft::gpu::cuda
