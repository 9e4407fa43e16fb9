#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/backend.h"

namespace hayloft::runtime {

// A number of positions, or a share of the context.
struct Budget {
  std::int64_t count = 0;
  double share = 0;  // used when count is 0

  std::int64_t of(std::int64_t tokens) const;  // at least 1, at most tokens
  std::string text() const;                    // "128" or "1%"
  friend bool operator==(const Budget&, const Budget&) = default;
};
Budget parse_budget(std::string_view text, std::string_view option);  // throws Error naming the option

// A budget per global layer: entry i is that of layer i, and the last one that of every layer behind it (the top-k
// paper's larger k in the first layer, arXiv 2502.06766, appendix A.3).
class Budgets {
 public:
  Budgets(Budget all = {128, 0}) : by_layer_{all} {}
  explicit Budgets(std::vector<Budget> by_layer);  // one entry at least

  const Budget& at(int layer) const;
  void set(int layer, Budget budget);  // of this layer alone
  const std::vector<Budget>& by_layer() const { return by_layer_; }
  std::string text() const;  // "128", "512,64"
  friend bool operator==(const Budgets&, const Budgets&) = default;

 private:
  std::vector<Budget> by_layer_;
};
Budgets parse_budgets(std::string_view text, std::string_view option);  // with commas between them

// What a user can choose about a method. Which fields matter depends on the method; make_method() knows.
struct MethodOptions {
  std::string name = "dense";
  int rank = 16;                       // r
  Budgets k;                           // positions attended, the local window counted in
  std::optional<std::int64_t> window;  // w; default: sparq k / 4, topk 0, window k - sinks
  std::int64_t sinks = 4;              // s, of `window`
  bool mean_value = true;              // SparQ step 3
  index::GroupRule rule = index::GroupRule::softmax;
  std::optional<index::SelectPer> per;  // default: sparq per KV head, topk per query head
  gpu::Temperature temperature = gpu::Temperature::coverage;
  bool faiss = false;  // topk by Faiss' flat index

  std::string factory;      // of `ann`, a Faiss factory string; empty: one that suits the length
  int probes = 0;           // of `ann`, nprobe; 0: as many as suit the index
  int ef = 0;               // of `ann`, efSearch; 0: likewise
  int rerank = 0;           // of `ann`: this many times k found by their codes, ranked by their keys; 0: not ranked
  bool query_aware = true;  // of `ann`: built with a sample of the prompt's queries
  int page = 32;            // of `pages`, tokens
  double recent = 0.5;      // of `h2o`, the share of k that is recent
  std::uint64_t seed = 1;   // of `lowrank`, its projections
};

// "dense", "sparq:r=8:k=256", "topk:k=1%", "ann:IVF1024,PQ16:nprobe=32": a method with options that override
// `defaults`. Throws Error on an unknown name or key.
MethodOptions parse_method(std::string_view text, const MethodOptions& defaults);

// The items of a list with commas between them. A comma begins a new item only where a method's name follows, so that a
// factory string and a list of k keep theirs: "dense,ann:IVF64,Flat:k=64,32,topk" has three.
std::vector<std::string> split_methods(std::string_view text);

std::vector<std::string> method_names();
bool has_rank(const MethodOptions& method);  // whether r says anything about it

// Whose selection it makes: of MethodOptions::per, or the method's own.
index::SelectPer selects_per(const MethodOptions& method);

// What tells it from others in tables: "sparq r=16 k=128".
std::string method_label(const MethodOptions& method);

}  // namespace hayloft::runtime
