#include "index/ann/ann.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "index/ann/head.h"
#include "index/scan/blas_places.h"
#include "offload/error.h"

namespace hayloft::index {
namespace {

constexpr std::int64_t keys_a_round = 16384;  // added to a head between two reports of progress

// Fewer keys than this are compared in less time than it takes to find out which of them to compare.
constexpr std::int64_t smallest_index = 8192;

constexpr std::uint32_t saved_version = 1;
constexpr std::uint32_t longest_saved_factory = 256;

// The same hits, scored by their rows.
BestHits ranked_exactly(const KeyRows& rows, const float* q, const std::vector<Hit>& hits, std::size_t k,
                        AnnCost& cost) {
  std::vector<std::int32_t> found;
  for (const Hit& hit : hits) found.push_back(hit.position);
  std::sort(found.begin(), found.end());
  std::vector<float> scores(found.size());
  score_rows(rows, q, found.data(), static_cast<int>(found.size()), scores.data());
  cost.row_bytes += found.size() * rows.key_bytes();
  BestHits best(k);
  best.offer(scores.data(), found.data(), static_cast<int>(found.size()));
  return best;
}

// One query head. `head` may be null: nothing is built.
void search_one(const AnnHead* head, const KeyRows& rows, const float* q, const AnnSearch& search,
                std::int32_t* positions, AnnCost& cost) {
  const auto k = static_cast<std::size_t>(search.k);
  const bool rerank = head != nullptr && !head->exact() && search.rerank > 0;
  BestHits best(rerank ? std::min(k * static_cast<std::size_t>(search.rerank), static_cast<std::size_t>(search.limit))
                       : k);
  if (head != nullptr) head->search(rows, {q, search.limit, search.probes, search.ef}, best, cost);
  if (rerank) best = ranked_exactly(rows, q, best.take(), k, cost);
  compare_exactly(rows, q, head != nullptr ? head->tokens() : 0, search.limit, best, cost);

  std::int32_t* end = positions;
  for (const Hit& hit : best.take()) *end++ = hit.position;
  std::sort(positions, end);
  if (end == positions + k) return;
  // The newest of those that were not found, of which there are enough: k <= limit.
  std::vector<std::int32_t> others;
  const std::size_t missing = static_cast<std::size_t>(positions + k - end);
  const std::int32_t* found = end;
  for (auto p = static_cast<std::int32_t>(search.limit - 1); others.size() < missing; --p) {
    if (found != positions && found[-1] == p) {
      --found;
    } else {
      others.push_back(p);
    }
  }
  std::copy(others.begin(), others.end(), end);
  std::sort(positions, positions + k);
}

}  // namespace

struct Ann::Slot {
  std::shared_ptr<AnnHead> head;  // shared with forks until one of them adds; null: not built
  QueryMoments queries;

  // Returns a head that may be written to, a copy if others have it too.
  AnnHead& own() {
    if (head.use_count() > 1) {
      head = head->clone();
    } else {
      // Whoever had it before has read the last of it: its release of the count was a release.
      std::atomic_thread_fence(std::memory_order_acquire);
    }
    return *head;
  }
  std::int64_t tokens() const { return head ? head->tokens() : 0; }
};

AnnCost& AnnCost::operator+=(const AnnCost& other) {
  keys += other.keys;
  index_bytes += other.index_bytes;
  row_bytes += other.row_bytes;
  return *this;
}

std::string default_ann_factory(std::int64_t tokens) {
  const double lists = 4 * std::sqrt(static_cast<double>(std::max<std::int64_t>(tokens, 1)));
  const int exponent = std::clamp(static_cast<int>(std::lround(std::log2(lists))), 4, 16);
  return fmt::format("IVF{},Flat", 1 << exponent);
}

Ann::Ann(const AnnOptions& options, int layers, int kv_heads, int head_dim)
    : options_(options),
      layers_(layers),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      slots_(static_cast<std::size_t>(layers * kv_heads)) {
  check_ann_factory(options.factory, head_dim);
}
Ann::Ann(const Ann&) = default;
Ann::Ann(Ann&&) noexcept = default;
Ann& Ann::operator=(Ann&&) noexcept = default;
Ann::~Ann() = default;

Ann Ann::fork() const {
  return Ann(*this);
}

Ann::Slot& Ann::slot(int layer, int head) {
  return const_cast<Slot&>(std::as_const(*this).slot(layer, head));
}
const Ann::Slot& Ann::slot(int layer, int head) const {
  const auto layers = static_cast<std::ptrdiff_t>(slots_.size()) / std::max(1, kv_heads_);
  if (layer < 0 || layer >= layers || head < 0 || head >= kv_heads_) {
    throw std::logic_error(
        fmt::format("Ann: layer {}, head {} of {} layers and {} heads", layer, head, layers, kv_heads_));
  }
  return slots_[static_cast<std::size_t>(layer) * static_cast<std::size_t>(kv_heads_) + static_cast<std::size_t>(head)];
}

void Ann::see_queries(int layer, const float* q, int n, int query_heads) {
  if (!options_.query_aware) return;
  const int group = query_heads / std::max(1, kv_heads_);
  if (group < 1) throw std::logic_error(fmt::format("Ann: {} query heads of {} KV heads", query_heads, kv_heads_));
  for (int i = 0; i < n; ++i) {
    for (int h = 0; h < query_heads; ++h) {
      slot(layer, h / group).queries.add(q + static_cast<std::ptrdiff_t>(i * query_heads + h) * head_dim_, head_dim_);
    }
  }
}

std::int64_t Ann::tokens(int layer) const {
  std::int64_t tokens = slot(layer, 0).tokens();
  for (int head = 1; head < kv_heads_; ++head) tokens = std::min(tokens, slot(layer, head).tokens());
  return tokens;
}

void Ann::build(std::span<const offload::LayerView> views, std::int64_t tokens, const offload::Threads& threads) {
  AnnOptions options = options_;
  if (options.factory.empty()) options.factory = default_ann_factory(tokens);
  const std::int64_t needed = training_keys(options.factory, head_dim_);
  if (tokens < needed) {
    fail(
        "--attn ann:{}: needs {} keys to be trained on, and the context has {} in its store; take fewer lists or a "
        "longer context",
        options.factory, needed, tokens);
  }
  std::vector<std::shared_ptr<AnnHead>> heads(slots_.size());
  threads.parallel_for(static_cast<std::int64_t>(slots_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const KeyRows rows(views[static_cast<std::size_t>(i / kv_heads_)], static_cast<int>(i % kv_heads_));
      const auto n = static_cast<std::size_t>(i);
      heads[n] = make_ann_head(options, rows, tokens, slots_[n].queries);
    }
  });
  for (std::size_t i = 0; i < heads.size(); ++i) slots_[i].head = std::move(heads[i]);
  factory_ = options.factory;
  trained_on_ = tokens;
}

void Ann::sync_with_store(std::span<const offload::LayerView> views, const offload::Threads& threads,
                          const Progress& progress) {
  if (views.empty()) return;
  const std::int64_t stored = views.front().tokens;
  const std::int64_t block = views.front().layout->block_tokens;
  for (const Slot& slot : slots_) {
    if (slot.tokens() > stored) {
      fail(
          "the saved index has {} keys and the context only {} in its store: they do not belong together; have it "
          "built "
          "anew",
          slot.tokens(), stored);
    }
  }
  std::int64_t done = stored;
  for (int layer = 0; layer < layers_; ++layer) done = std::min(done, tokens(layer));
  if (done == stored || stored < smallest_index) return;
  prepare_blas(threads);
  std::int64_t goal = stored;
  if (trained_on_ == 0 || (stored - done > 2 * block && stored >= 2 * trained_on_)) {
    build(views, stored, threads);
    done = 0;
  } else if (!progress && stored - done <= 2 * block) {
    goal = std::min(stored, done + step_tokens);
  }
  for (; done < goal; done = std::min(goal, done + keys_a_round)) {
    const std::int64_t end = std::min(goal, done + keys_a_round);
    if (progress) progress(done * layers_, goal * layers_);
    threads.parallel_for(static_cast<std::int64_t>(slots_.size()), 1, [&](std::int64_t first, std::int64_t last) {
      const BlasPlace place;
      omp_set_num_threads(1);
      for (std::int64_t i = first; i < last; ++i) {
        Slot& slot = slots_[static_cast<std::size_t>(i)];
        const KeyRows rows(views[static_cast<std::size_t>(i / kv_heads_)], static_cast<int>(i % kv_heads_));
        if (slot.tokens() < end) slot.own().add(rows, end);
      }
    });
  }
  if (progress && goal == stored) progress(goal * layers_, goal * layers_);
}

std::vector<std::byte> Ann::save() const {
  ByteWriter out;
  out.number(saved_version);
  out.text(options_.factory);
  out.text(factory_);
  out.number(static_cast<std::uint8_t>(options_.query_aware));
  for (const int part : {layers_, kv_heads_, head_dim_}) out.number(static_cast<std::int32_t>(part));
  out.number(trained_on_);
  for (const Slot& slot : slots_) {
    out.number(slot.queries.queries);
    out.array(std::span<const double>(slot.queries.sum));
    out.number(static_cast<std::uint8_t>(slot.head != nullptr));
    if (slot.head) slot.head->write(out);
  }
  return out.take();
}

void Ann::load(std::span<const std::byte> saved) {
  IndexReader in(saved, "the saved index");
  const auto version = in.number<std::uint32_t>();
  if (version != saved_version)
    fail("the saved index has version {}, and this program reads version {}", version, saved_version);
  const std::string asked = in.text(longest_saved_factory);
  std::string factory = in.text(longest_saved_factory);
  const bool aware = in.number<std::uint8_t>() != 0;
  if (asked != options_.factory || aware != options_.query_aware) {
    fail("the saved index is one of ann{}{}{}, which is not what was asked for", asked.empty() ? "" : ":", asked,
         aware ? "" : ":aware=off");
  }
  for (const int part : {layers_, kv_heads_, head_dim_}) {
    if (in.number<std::int32_t>() != part)
      fail("the saved index is one of another model: its layers or heads are not these");
  }
  const auto trained_on = in.number<std::int64_t>();
  if (trained_on < 0) in.damaged("it was trained on a negative number of keys");
  std::vector<Slot> slots(slots_.size());
  for (Slot& slot : slots) {
    slot.queries.queries = in.number<std::int64_t>();
    if (slot.queries.queries < 0) in.damaged("a negative number of queries");
    if (slot.queries.queries > 0) {
      slot.queries.sum =
          in.array<double>(static_cast<std::uint64_t>(head_dim_) * static_cast<std::uint64_t>(head_dim_));
    }
    const bool built = in.number<std::uint8_t>() != 0;
    if (built != (trained_on > 0)) in.damaged("a part of it is missing");
    if (built) slot.head = read_ann_head({factory, aware}, head_dim_, in);
  }
  if (!in.done()) in.damaged("there is something behind it");
  slots_ = std::move(slots);
  factory_ = std::move(factory);
  trained_on_ = trained_on;
}

void Ann::forget_keys() {
  for (Slot& slot : slots_) slot.head.reset();
  factory_.clear();
  trained_on_ = 0;
}

AnnCost Ann::search(int layer, const offload::LayerView& view, const float* q, const AnnSearch& search,
                    const offload::Threads& threads, std::int32_t* positions) const {
  if (search.query_heads < kv_heads_ || search.query_heads % kv_heads_ != 0) {
    fail("index search: {} query heads cannot share {} KV heads; use a multiple", search.query_heads, kv_heads_);
  }
  if (search.limit < 0 || search.limit > view.tokens || search.k < 0 || search.k > search.limit) {
    fail("index search: k {} of {} positions is out of range; the store holds {} tokens", search.k, search.limit,
         view.tokens);
  }
  if (search.k == 0) return {};
  prepare_blas(threads);
  const int group = search.query_heads / kv_heads_;
  std::vector<AnnCost> costs(static_cast<std::size_t>(search.query_heads));
  threads.parallel_for(search.query_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    const BlasPlace place;
    omp_set_num_threads(1);
    for (std::int64_t h = begin; h < end; ++h) {
      const Slot& at = slot(layer, static_cast<int>(h) / group);
      const KeyRows rows(view, static_cast<int>(h) / group);
      search_one(at.head.get(), rows, q + h * head_dim_, search, positions + h * search.k,
                 costs[static_cast<std::size_t>(h)]);
    }
  });
  AnnCost cost;
  for (const AnnCost& one : costs) cost += one;
  return cost;
}

std::uint64_t Ann::bytes() const {
  std::uint64_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += slot.queries.sum.size() * sizeof(double) + (slot.head ? slot.head->bytes() : 0);
  }
  return bytes;
}

}  // namespace hayloft::index
