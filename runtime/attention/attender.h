#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/attention/method_options.h"
#include "runtime/attention/ranking.h"
#include "runtime/attention/rest.h"
#include "runtime/attention/selection_plan.h"
#include "runtime/attention/step.h"
#include "runtime/cache/cache_size.h"
#include "runtime/peers/communicator.h"

namespace hayloft::runtime {

// Positions of a plan, and what was learned while they were selected; on the host or on the device.
struct Selection {
  std::vector<std::int32_t> positions = {};  // [lists][k], ascending
  std::vector<float> alpha = {};             // [Hq], the softmax mass of all that is attended; may be empty
  // The same in memory of the device, in the step's scratch; null: on the host, where there are any.
  const std::int32_t* device_positions = nullptr;
  const float* device_alpha = nullptr;
  index::KeptScores* kept = nullptr;  // the scores that ranked, in the step's scratch; null or empty: not kept
  // The scores they were chosen by, on the device, where the ranking asks for them: gpu::SparqSelect::scores.
  std::shared_ptr<const gpu::Buffer> scores = nullptr;
};

// A search of a method's own over the keys of a view, by whatever it has for them: positions out i32 [Hq][k], of
// [0, limit), distinct. Returns what it counted, as many numbers whatever the view.
using OwnSearch = std::function<std::vector<std::uint64_t>(const offload::LayerView& view, std::int64_t limit, int k,
                                                           std::int32_t* positions)>;

// Positions that such a search has found.
struct Finds {
  std::vector<std::int32_t> positions = {};  // [Hq][k], ascending
  std::uint64_t scored = 0;                  // positions whose keys were read once more, to compare searches
  std::vector<std::uint64_t> counted = {};   // by the searches together; empty where nothing was searched
};

// The place where the global layers of a session attend: this process alone (local_attender), or several that hold a
// context together (runtime/cluster/rank_attender.h). Immutable and shared by sessions; of several processes each has
// one, and makes the same calls. What has no default is the attention itself; the rest is what a session asks of the
// place before it begins.
class Attender {
 public:
  virtual ~Attender() = default;

  // Chooses by the ranking as many positions as the plan says. Nothing where it has nothing to choose and alpha is not
  // wanted.
  virtual Selection select(const Step& step, const SelectionPlan& plan, const Ranking& ranking) const = 0;
  // The k positions of each query head that a search of the method's own finds, q f32 [Hq][d] in host memory.
  virtual Finds find(const Step& step, const SelectionPlan& plan, const float* q, const OwnSearch& search) const = 0;
  // Attends to what was selected and to the plan's ranges, and fills the step's trace. A rest by shares of the softmax
  // needs alpha, and without it is none.
  virtual void attend(const Step& step, const SelectionPlan& plan, const Selection& selection, Rest rest) const = 0;
  // The same with a rest by scores (Rest::by_scores()), what was selected by this ranking. Where no position of the
  // store is left to estimate it is attend(). Throws Error where the attender cannot; require() has said so before.
  virtual void attend_with_rest(const Step& step, const SelectionPlan& plan, const Selection& selection,
                                const Ranking& ranking, Rest rest) const;
  // Fills the step's estimate behind attend(), of what was selected by this ranking, which is to score every position.
  // Leaves it empty where the attender cannot.
  virtual void predict(const Step&, const SelectionPlan&, const Selection&, const Ranking&, Rest) const {}
  // Prefill: gpu::Backend::attend_causal() of the newest `rows` tokens, q and out f32 [rows][Hq][d].
  virtual void attend_causal(const LayerStep& at, const float* q, int rows, const gpu::CausalWindow& window,
                             float* out) const = 0;

  // The processes that hold the context; this one alone, unless said otherwise. They must outlive the attender.
  virtual cluster::Communicator& peers() const { return cluster::alone(); }
  // True where it reads prompts by every PrefillOptions, and may attend to layers that are not in blocks yet.
  virtual bool has_whole_layers() const { return true; }
  // Bytes that attend_causal() takes of the device's memory beside the backend's own, at most, for chunks of T tokens.
  virtual std::uint64_t prefill_bytes(int /*query_heads*/, int /*head_dim*/, int /*T*/) const { return 0; }
  // Throws Error, and says what does, unless it attends by the method to a cache of these options, whose block size may
  // be 0: not chosen yet; and on this backend.
  virtual void require(const MethodOptions&, const CacheOptions&) const {}
  virtual void require(const gpu::Backend&) const {}
};

// Throws Error, and says what to use, where the backend does not attend with such a rest.
void require_rest(const gpu::Backend& backend, Rest rest);

// Sessions share attenders, which are immutable.
using SharedAttender = std::shared_ptr<const Attender>;

// In this process alone; the same one for all.
SharedAttender local_attender();

}  // namespace hayloft::runtime
