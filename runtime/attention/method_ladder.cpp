#include "runtime/attention/method_ladder.h"

#include <algorithm>
#include <cmath>

#include "runtime/attention/column_recall.h"

namespace hayloft::runtime {
namespace {

constexpr int most_levels = 8;  // 128 times as many positions

// The factor by which the exact search takes longer over the keys of a model than over a profile's noise, as seen on
// SmolLM2.
constexpr double keys_over_noise = 1.6;

// `value` after so many levels of half as much again, at most `most`.
int raised(int value, int levels, int most) {
  return static_cast<int>(std::min<double>(most, std::ceil(value * std::pow(1.5, levels))));
}

Budgets raised(const Budgets& k, int levels) {
  std::vector<Budget> by_layer = k.by_layer();
  for (Budget& budget : by_layer) {
    budget.count <<= levels;
    budget.share = std::min(1.0, budget.share * (1 << levels));
  }
  return Budgets(std::move(by_layer));
}

MethodOptions at_level(MethodOptions options, int level, int head_dim) {
  options.k = raised(options.k, level);
  // Projections belong to what `lowrank` keeps of a sequence.
  if (options.name == "sparq") options.rank = raised(options.rank, level, head_dim);
  if (options.name == "planes") options.bits = raised(options.bits, level, head_dim * offload::plane_count);
  return options;
}

// Returns what `auto` leaves to a method of that name.
MethodOptions left_to(const char* name, MethodOptions options, int head_dim) {
  options.name = name;
  options.rank = std::min(options.rank, head_dim);
  options.bits = std::min(options.bits, head_dim * offload::plane_count);
  options.rates = nullptr;
  options.recall = nullptr;
  // It does not take these, though a flag meant for another method may have set them.
  options.per.reset();
  options.order = index::ComponentOrder::q;
  options.faiss = false;
  return options;
}

// The cache at the middle of its tail_part().
gpu::CacheView settled(gpu::CacheView cache) {
  const std::int64_t block = cache.store.layout->block_tokens;
  cache.tail.position = cache.stored_tokens();
  cache.tail.tokens = std::max<std::int64_t>(1, (2 * tail_part(cache) + 1) * block / (2 * tail_parts));
  return cache;
}

class Leveled : public Method {
 public:
  Leveled(std::shared_ptr<const MethodLadder> ladder, std::vector<int> levels)
      : Method(ladder->options()), ladder_(std::move(ladder)), levels_(std::move(levels)) {}

  std::int64_t window(std::int64_t tokens, int layer) const override { return ladder_->first().window(tokens, layer); }
  std::int64_t recall_k(std::int64_t tokens, int layer) const override {
    return ladder_->first().recall_k(tokens, layer);
  }
  std::string state_key() const override { return ladder_->first().state_key(); }
  std::unique_ptr<MethodState> make_state(const AttentionShape& shape, gpu::Backend& backend) const override {
    return ladder_->first().make_state(shape, backend);
  }
  std::unique_ptr<MethodState> load_state(const AttentionShape& shape, gpu::Backend& backend,
                                          std::span<const std::byte> saved) const override {
    return ladder_->first().load_state(shape, backend, saved);
  }
  std::uint64_t state_bytes(const AttentionShape& shape, std::int64_t tokens) const override {
    return ladder_->first().state_bytes(shape, tokens);
  }

 protected:
  const Method& chosen(const gpu::CacheView& cache, int query_heads) const override {
    const std::size_t layer = std::min(static_cast<std::size_t>(cache.layer), levels_.size() - 1);
    return ladder_->at(levels_[layer], cache, query_heads);
  }
  // Asked of the chosen method.
  Counters count_planned(const gpu::CacheView&, const SelectionPlan&) const override { return {}; }

 private:
  std::shared_ptr<const MethodLadder> ladder_;
  std::vector<int> levels_;
};

}  // namespace

// The inputs that every method of a step is predicted from.
struct MethodLadder::Prediction {
  Prediction(const MachineRates& machine, const gpu::CacheView& at, int heads)
      : cache(settled(at)), query_heads(heads) {
    const offload::BlockLayout& layout = *cache.store.layout;
    const auto blocks =
        static_cast<std::uint64_t>((cache.stored_tokens() + layout.block_tokens - 1) / layout.block_tokens);
    const std::uint64_t bytes = blocks * layout.block_bytes;
    rates = machine.rates(cache.head_dim, heads / cache.kv_heads, bytes);
    alone = machine.rates(cache.head_dim, 1, bytes);
    if (layout.row_format == offload::RowFormat::f16 || machine.integer_rows == 0) return;
    const double f16_bytes = 2.0 * sizeof(f16) * cache.head_dim;
    integer_rows = machine.integer_rows * f16_bytes / static_cast<double>(layout.row_bytes);
    integer_keys = machine.integer_keys * f16_bytes / static_cast<double>(layout.row_bytes);
  }

  double milliseconds(const Method& method) const {
    const Counters counters = method.count(cache, query_heads);
    AttentionTime ms = attention_time(method.options(), counters, *cache.store.layout, rates, alone);
    ms.rows *= integer_rows;
    ms.dense *= integer_rows;
    if (counters.at(Place::near, Kind::rows) > 0) ms.search *= integer_keys;
    if (method.options().name == "topk") ms.search *= keys_over_noise;
    return ms.total();
  }

  gpu::CacheView cache;
  int query_heads;
  AttentionRates rates;
  AttentionRates alone;
  double integer_rows = 1;
  double integer_keys = 1;
};

MethodLadder::MethodLadder(const MethodOptions& options, int head_dim)
    : options_(options),
      rates_(options.rates ? options.rates : built_in_rates("cpu")),
      dense_(make_method(left_to("dense", options, head_dim), head_dim)) {
  for (int level = 0; level < most_levels; ++level) {
    std::vector<SharedMethod> methods;
    const auto add = [&](const MethodOptions& base) {
      methods.push_back(make_method(at_level(base, level, head_dim), head_dim));
    };
    if (fixed()) {
      if (options.name == "dense") return;
      add(options);
    } else {
      for (const char* const name : {"sparq", "planes", "topk"}) add(left_to(name, options, head_dim));
    }
    levels_.push_back(std::move(methods));
  }
}

bool MethodLadder::fits(const Method& method, offload::ColumnFormat columns) const {
  if (fixed()) return true;
  if (in_planes(columns)) return method.options().name != "sparq";
  return method.options().name != "planes";
}

// True where, by what was measured, the method finds too little in that layer.
bool MethodLadder::blind(const Method& method, offload::ColumnFormat columns, int layer) const {
  if (!options_.recall) return false;
  const MethodOptions& options = method.options();
  if (options.name != "sparq" && options.name != "planes") return false;
  return options_.recall->blind({columns, options.name == "planes" ? options.bits : options.rank}, layer);
}

// The method in place `which` of a level, or of the first level behind it that is not blind; null: it does not read
// such columns, or is blind at all levels.
const Method* MethodLadder::seeing(int level, std::size_t which, offload::ColumnFormat columns, int layer) const {
  for (auto at = static_cast<std::size_t>(level); at < levels_.size(); ++at) {
    const Method& method = *levels_[at][which];
    if (!fits(method, columns)) return nullptr;
    if (fixed() || !blind(method, columns, layer)) return &method;
  }
  return nullptr;
}

const Method& MethodLadder::judged_at(int level, offload::ColumnFormat columns, int layer) const {
  if (level >= exact_level()) return *dense_;
  for (std::size_t which = 0; which < levels_[static_cast<std::size_t>(level)].size(); ++which) {
    if (const Method* const method = seeing(level, which, columns, layer)) return *method;
  }
  return *dense_;
}

const Method& MethodLadder::at(int level, const gpu::CacheView& cache, int query_heads) const {
  if (level >= exact_level()) return *dense_;
  const auto& methods = levels_[static_cast<std::size_t>(level)];
  if (fixed() && level == 0) return *methods.front();
  if (cache.stored_tokens() == 0) return *dense_;  // the tail is attended to as a whole by all of them
  const Prediction prediction(*rates_, cache, query_heads);
  const Method* best = dense_.get();
  double least = prediction.milliseconds(*dense_) * (1 - rates_->margin);
  for (std::size_t which = 0; which < methods.size(); ++which) {
    const Method* const each = seeing(level, which, cache.store.layout->columns, cache.layer);
    if (!each) continue;
    const double ms = prediction.milliseconds(*each);
    if (ms >= least) continue;
    least = ms;
    best = each;
  }
  return *best;
}

int MethodLadder::worthwhile(const gpu::CacheView& cache, int query_heads) const {
  if (cache.stored_tokens() == 0) return 0;
  int level = 0;
  while (level < exact_level() && &at(level, cache, query_heads) != dense_.get()) ++level;
  return level;
}

bool MethodLadder::shares_state() const {
  return std::ranges::all_of(levels_, [&](const auto& methods) {
    return std::ranges::all_of(methods,
                               [&](const SharedMethod& each) { return each->state_key() == first().state_key(); });
  });
}

double MethodLadder::predicted(const Method& method, const gpu::CacheView& cache, int query_heads) const {
  return Prediction(*rates_, cache, query_heads).milliseconds(method);
}

SharedMethod make_auto(const MethodOptions& options, int head_dim) {
  return make_leveled(std::make_shared<const MethodLadder>(options, head_dim), {0});
}

SharedMethod make_leveled(std::shared_ptr<const MethodLadder> ladder, std::vector<int> levels) {
  return std::make_shared<Leveled>(std::move(ladder), std::move(levels));
}

}  // namespace hayloft::runtime
