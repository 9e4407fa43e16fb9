#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "index/scan/ranking_options.h"
#include "runtime/attention/budget.h"
#include "runtime/attention/rest.h"

namespace hayloft::runtime {

struct ColumnRecall;
struct MachineRates;

// The options that a user can choose about a method. method_option_table.h says which methods use which field, and how
// each is written, described, printed and checked. Its base has r of `sparq` and `lowrank`, bits of `planes`, order of
// `sparq`; ranking_options() has what the method makes of it.
struct MethodOptions : index::RankingOptions {
  MethodOptions() {
    rank = 16;
    bits = 32;
  }

  std::string name = "dense";
  Budgets k;                           // positions attended, the local window counted in
  std::optional<std::int64_t> window;  // w; default: sparq k / 4, topk 0, window k - sinks
  std::int64_t sinks = 4;              // s, of `window`
  bool mean_value = true;              // SparQ step 3
  std::optional<Rest::Kind> rest;      // stands in for what is not attended; none: as mean_value says, where it is used
  bool faiss = false;                  // topk by Faiss' flat index

  std::string factory;      // of `ann`, a Faiss factory string; empty: one that suits the length
  int probes = 0;           // of `ann`, nprobe; 0: as many as suit the index
  int ef = 0;               // of `ann`, efSearch; 0: likewise
  int rerank = 0;           // of `ann`: this many times k found by their codes, ranked by their keys; 0: not ranked
  bool query_aware = true;  // of `ann`: built with a sample of the prompt's queries
  int page = 32;            // of `pages`, tokens
  double recent = 0.5;      // of `h2o`, the share of k that is recent
  std::uint64_t seed = 1;   // of `lowrank`, its projections; of rest=draw

  // For `auto`, no matter of the user's: the rates that it predicts by (runtime/attention/attention_rates.h); null:
  // built_in_rates() of a CPU.
  std::shared_ptr<const MachineRates> rates = nullptr;

  // For `auto` too: what the columns of the context were measured to find, so that it leaves out what is blind there;
  // null: nothing is known.
  std::shared_ptr<const ColumnRecall> recall = nullptr;

  friend bool operator==(const MethodOptions&, const MethodOptions&) = default;
};

// "dense", "sparq:r=8:k=256", "topk:k=1%", "ann:IVF1024,PQ16:nprobe=32": a method with options that override
// `defaults`. Throws Error on an unknown name, an unknown key, and a key that the method does not use or that changes
// nothing beside the others.
MethodOptions parse_method(std::string_view text, const MethodOptions& defaults);

// The items of a list with commas between them. A comma begins a new item only where a method's name follows, so that a
// factory string and a list of k keep theirs: "dense,ann:IVF64,Flat:k=64,32,topk" has three.
std::vector<std::string> split_methods(std::string_view text);

std::vector<std::string> method_names();     // as --attn takes them
bool has_rank(const MethodOptions& method);  // whether r says anything about it

// Returns whether it reads key columns that are planes, which no other format can stand in for.
bool needs_planes(const MethodOptions& method);

// Returns by what the method ranks positions: the options that it uses, and for the others what is its own. `per` is
// always there.
index::RankingOptions ranking_options(const MethodOptions& method);

// Returns what stands in for the positions that the method does not read.
Rest rest_of(const MethodOptions& method);

// Returns what tells it from others in tables: "sparq r=16 k=128".
std::string method_label(const MethodOptions& method);

}  // namespace hayloft::runtime
