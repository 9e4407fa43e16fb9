#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "index/scan/run_cache.h"
#include "offload/host/threads.h"
#include "runtime/attention/step_observer.h"
#include "runtime/decode/expert_uses.h"
#include "runtime/fidelity/ranking.h"
#include "runtime/fidelity/running_stats.h"

// Measures what the attention of a run is like, whatever method decodes it: the figures by which the papers explain why
// reading little of the cache is enough. From top-k attention (arXiv 2502.06766) figures 2, 4, 10 and 11, from SparQ
// (arXiv 2312.04985) figures 4, E1 and E2.
namespace hayloft::runtime {

// Says what is computed, and for how many steps.
struct AttentionStatsOptions {
  std::vector<int> ranks;                              // r, held to d; empty: d/8, d/4 and d/2
  std::vector<std::int64_t> ks = {16, 64, 256, 1024};  // k, held to the tokens there are
  std::int64_t steps = 64;                             // of each sequence that are measured; the others cost nothing
};

// One layer, over its heads and the steps measured.
struct LayerAttention {
  RunningStats entropy;  // of the softmax of a query head, nats; log(tokens) where all positions weigh the same
  // Counts the keys that hold a quarter, a half and three quarters of a query head's softmax, at least.
  static constexpr double shares[3] = {0.25, 0.5, 0.75};
  RunningStats keys[3];
  std::map<std::int64_t, RunningStats> top_mass;  // by k: of a query head's softmax on its k largest weights
  // By (r, k): the share of the k positions with the largest exact scores that are among the k with the largest
  // approximate ones (SparQ's step 1, in the format of the store's columns). Per KV head, by the group's sum of
  // softmaxes.
  std::map<std::pair<int, std::int64_t>, RunningStats> agreement;
  // The share of the r components, or the k positions, that a KV head chose in the step before and chose again.
  std::map<int, RunningStats> columns_again;
  std::map<std::int64_t, RunningStats> positions_again;
  // By (r, slots): of the r columns that a KV head read in a step, the share that a device had which keeps so many
  // (index::RunCache), from the step on that `warm` others came before.
  static constexpr int warm = 16;
  std::map<std::pair<int, int>, RunningStats> columns_held;
  RunningStats kurtosis;  // of the components of a query: 3 where they are normally distributed
};

// One layer that is a mixture of experts, over all steps: they cost next to nothing.
struct LayerExperts {
  int count = 0;  // of experts
  // By slots: of the experts that a step asked for, the share that a device had which keeps so many by use
  // (KeptExperts), from the step on that LayerAttention::warm others came before.
  std::map<int, RunningStats> held;
};

// The findings of AttentionStats, by layer.
struct AttentionReport {
  std::map<int, LayerAttention> layers;  // by the model's layer
  std::map<int, LayerExperts> experts;   // likewise; empty without mixtures
  std::int64_t steps = 0;                // measured
  std::int64_t tokens = 0;               // of context at the last of them
};

// Measures them, with the backend's threads, while the step waits: for studies, not for serving. Observes one session
// after another.
class AttentionStats : public StepObserver {
 public:
  explicit AttentionStats(const AttentionStatsOptions& options = {});  // throws Error on an r or a k below 1

  bool wants(int layer, std::int64_t position) override;
  void see(const Step& step, const Method& by) override;
  void see_experts(int layer, std::int64_t position, int of, std::span<const int> chosen) override;

  const AttentionReport& report() const { return report_; }

 private:
  // The choices of a layer in its last step, by which the next one is compared.
  struct Chosen {
    std::int64_t position = -1;
    std::map<int, std::vector<std::int32_t>> columns;             // by r: [Hkv][r]
    std::map<std::int64_t, std::vector<std::int64_t>> positions;  // by k: [Hkv][k], ascending
  };
  bool measures(int layer, std::int64_t position);
  void add_distribution(const StepQuery& step, const RankedPositions& exact, LayerAttention& layer,
                        const offload::Threads& threads) const;
  Chosen add_choices(const StepQuery& step, const RankedPositions& exact, LayerAttention& layer,
                     const offload::Threads& threads) const;
  void add_held(const Chosen& chosen, int head_dim, int layer);
  static void add_repetition(const Chosen& before, const Chosen& now, int kv_heads, LayerAttention& layer);

  AttentionStatsOptions options_;
  AttentionReport report_;
  std::map<int, Chosen> last_;  // by the model's layer
  // By the model's layer, r, slots and KV head: what a device would keep.
  std::map<std::tuple<int, int, int, int>, index::RunCache> kept_;
  std::map<std::pair<int, int>, KeptExperts> kept_experts_;  // by the model's layer and slots
  std::int64_t last_position_ = -1;
  int last_layer_ = -1;  // twice the model's layer, and one more for its experts
  std::int64_t steps_of_sequence_ = 0;
};

std::string attention_table(const AttentionReport& report);  // Markdown
std::string attention_json(const AttentionReport& report);   // schema hayloft.attention/1

}  // namespace hayloft::runtime
