#include "runtime/machine/measure_network.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "offload/clock.h"
#include "offload/error.h"
#include "runtime/cluster/candidates.h"
#include "runtime/cluster/merge.h"
#include "runtime/machine/profile.h"

namespace hayloft::runtime::plan {
namespace {

using cluster::Traffic;

// The shape of Llama-3-8B, and the k that docs/cluster.md has messages of.
constexpr int model_query_heads = 32;
constexpr int model_kv_heads = 8;
constexpr int model_head_dim = 128;
constexpr int k = 512;
constexpr std::uint64_t prompt_bytes = std::uint64_t{64} << 20;  // of all ranks together, as a chunk of a prompt sends
constexpr std::size_t most_turns = 10000;

std::vector<NetworkFigure> wanted_figures(int ranks) {
  const std::uint64_t sums = 4 * sizeof(float) * model_query_heads;
  const auto gather = [&](const char* what, std::uint64_t bytes) {
    return NetworkFigure{what, false, bytes, bytes * static_cast<std::uint64_t>(ranks - 1)};
  };
  return {
      {"the token that was drawn", true, sizeof(std::int32_t), sizeof(std::int32_t)},
      gather("4 bytes: the latency", sizeof(std::int32_t)),
      gather("sums of softmaxes", sums),
      gather("dense, window", cluster::AttentionParts::bytes(model_query_heads, model_head_dim)),
      gather("candidates of sparq:k=512",
             cluster::Candidates::bytes(model_kv_heads, model_query_heads / model_kv_heads, k) + sums),
      gather("candidates of topk:k=512", cluster::Candidates::bytes(model_query_heads, 1, k)),
      gather("a chunk of a prompt: the rate", prompt_bytes / static_cast<std::uint64_t>(ranks)),
  };
}

// Returns the bytes that a rank sends, by which it is known.
std::byte payload(int rank, std::size_t i) {
  return static_cast<std::byte>((i * 131 + static_cast<std::size_t>(rank) * 29 + 7) & 0xff);
}

class NetworkTimer {
 public:
  NetworkTimer(cluster::Communicator& ranks, double seconds, int figures)
      : ranks_(ranks), end_(Clock::now() + in_seconds(seconds)), left_(figures) {}

  void measure(NetworkFigure& figure) {
    const Clock::time_point now = Clock::now();
    const Clock::time_point enough = now + (end_ - now) / std::max(1, left_--);
    const auto size = static_cast<std::size_t>(figure.sent_bytes);
    const int all_ranks = ranks_.ranks();
    std::vector<std::byte> own(size), all(figure.broadcast ? 0 : size * static_cast<std::size_t>(all_ranks));
    for (std::size_t i = 0; i < size; ++i) own[i] = payload(figure.broadcast ? 0 : ranks_.rank(), i);
    const auto send = [&] {
      if (figure.broadcast) return ranks_.broadcast(Traffic::start, own);
      ranks_.all_gather(Traffic::start, own, all);
    };
    send();
    check(figure, figure.broadcast ? own : all);
    std::vector<double> times;
    while (more(times.size() < 5 || (Clock::now() < enough && times.size() < most_turns))) {
      meet();
      const Clock::time_point before = Clock::now();
      send();
      times.push_back(std::max(seconds_since(before), 1e-9));
    }
    times = slowest_of_ranks(times);
    std::ranges::sort(times);
    figure.turns = static_cast<int>(times.size());
    figure.median_us = times[times.size() / 2] * 1e6;
    figure.fastest_us = times.front() * 1e6;
    figure.slowest_us = times.back() * 1e6;
  }

 private:
  static Clock::duration in_seconds(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // As the first rank says, whose clock counts.
  bool more(bool go_on) {
    std::byte says{go_on};
    ranks_.broadcast(Traffic::start, {&says, 1});
    return says != std::byte{0};
  }

  void meet() {
    const std::byte here{};
    std::vector<std::byte> all(static_cast<std::size_t>(ranks_.ranks()));
    ranks_.all_gather(Traffic::start, {&here, 1}, all);
  }

  void check(const NetworkFigure& figure, const std::vector<std::byte>& got) const {
    const auto size = static_cast<std::size_t>(figure.sent_bytes);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == payload(static_cast<int>(i / size), i % size)) continue;
      fail("what ranks send arrives changed: byte {} of {} of rank {} ({})", i % size, size, i / size, figure.what);
    }
  }

  std::vector<double> slowest_of_ranks(const std::vector<double>& own) {
    std::vector<double> all(own.size() * static_cast<std::size_t>(ranks_.ranks()));
    ranks_.all_gather(Traffic::start, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
    std::vector<double> slowest(own.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      double& turn = slowest[i % own.size()];
      turn = std::max(turn, all[i]);
    }
    return slowest;
  }

  cluster::Communicator& ranks_;
  Clock::time_point end_;
  int left_;
};

std::vector<std::string> hosts_of(cluster::Communicator& ranks, const std::string& own) {
  constexpr std::size_t longest = 256;
  std::vector<char> name(longest), all(longest * static_cast<std::size_t>(ranks.ranks()));
  std::strncpy(name.data(), own.c_str(), longest - 1);
  ranks.all_gather(Traffic::start, std::as_bytes(std::span(name)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> hosts;
  for (std::size_t at = 0; at < all.size(); at += longest) hosts.emplace_back(all.data() + at);
  return hosts;
}

}  // namespace

bool NetworkReport::share_machines() const {
  return std::set<std::string>(hosts.begin(), hosts.end()).size() < hosts.size();
}

bool NetworkReport::on_one_machine() const {
  return std::ranges::all_of(hosts, [&](const std::string& host) { return host == hosts.front(); });
}

Network NetworkReport::network() const {
  const NetworkFigure* least = nullptr;
  const NetworkFigure* most = nullptr;
  for (const NetworkFigure& figure : figures) {
    if (figure.broadcast) continue;
    if (least == nullptr || figure.sent_bytes < least->sent_bytes) least = &figure;
    if (most == nullptr || figure.sent_bytes > most->sent_bytes) most = &figure;
  }
  if (least == nullptr || ranks < 2) return {};
  return {most->gigabits_per_second(), least->median_us / network_rounds(ranks)};
}

NetworkReport measure_network(cluster::Communicator& ranks, const NetworkOptions& options,
                              const NetworkProgress& progress) {
  const ProfileOrigin here = origin_here(offload::Topology(), options.version);
  NetworkReport report{ranks.ranks(), hosts_of(ranks, here.host), here.date, options.version,
                       wanted_figures(ranks.ranks())};
  NetworkTimer timer(ranks, options.seconds, static_cast<int>(report.figures.size()));
  for (NetworkFigure& figure : report.figures) {
    if (progress) progress(figure.what);
    timer.measure(figure);
  }
  return report;
}

}  // namespace hayloft::runtime::plan
