#include "runtime/plan/gpu_roofline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <iterator>

#include "offload/error.h"
#include "runtime/cache/cache_size.h"

namespace hayloft::runtime::plan {
namespace {

constexpr int counted_kv_heads = 8;
constexpr int counted_group = 4;
constexpr int counted_head_dim = 128;
constexpr int counted_rank = 16;
constexpr int chunk_tokens = 256;

// Per unit of work, from scripts/kernel-costs for sm_89. Instructions are of warps: of SASS for work that grows with
// the context, of PTX for the launches that a layer has once. Bytes are those that threads name, each once where a
// cache has them for the second time.
struct Cost {
  const char* stage;
  double instructions;
  double memory_bytes;
  double link_bytes;
  int blocks = 0;  // that a launch has, each on a multiprocessor of its own; 0: enough to fill every device
};

// The cost of 256 tokens of a KV head.
struct ScanCost {
  offload::ColumnFormat format;
  Cost scan;
};
constexpr ScanCost scan_costs[] = {
    {offload::ColumnFormat::f16, {"column scan", 1489, 4384, 8192}},
    {offload::ColumnFormat::int8, {"column scan", 1851, 4480, 4224}},
    {offload::ColumnFormat::int4, {"column scan", 1860, 4480, 2176}},
};
const Cost* scan_cost(offload::ColumnFormat format) {
  const auto* const found = std::find_if(std::begin(scan_costs), std::end(scan_costs),
                                         [&](const ScanCost& cost) { return cost.format == format; });
  return found == std::end(scan_costs) ? nullptr : &found->scan;
}
// Planes of a KV head, all components together; 0: all four of r components.
struct PlaneCost {
  int bits;
  Cost scan;        // of 256 tokens of a KV head
  Cost components;  // choose_components, of a layer
};
constexpr PlaneCost plane_costs[] = {
    {0, {"column scan", 1466, 5280, 2112}, {"components", 58423, 39424, 0, counted_kv_heads}},
    {16, {"column scan", 1036, 4463, 552}, {"components", 384643, 42464, 0, counted_kv_heads}},
    {32, {"column scan", 1559, 4837, 1122}, {"components", 383195, 49248, 0, counted_kv_heads}},
    {64, {"column scan", 2615, 5576, 2260}, {"components", 380837, 62720, 0, counted_kv_heads}},
};
const PlaneCost* plane_cost(int bits) {
  const auto* const found =
      std::find_if(std::begin(plane_costs), std::end(plane_costs), [&](const PlaneCost& c) { return c.bits == bits; });
  return found == std::end(plane_costs) ? nullptr : found;
}
// Likewise; the last four as if no chunk could be passed over by its largest score.
constexpr Cost selection[] = {
    {"selection", 12.5, 48, 0, counted_kv_heads* counted_group},  // normalise
    {"selection", 748, 5125, 0},                                  // rank_positions
    {"selection", 154, 2306, 0},                                  // refine_histogram, twice
    {"selection", 114, 1160, 0},                                  // tally_chunks
    {"selection", 4.8, 24, 0, counted_kv_heads},                  // add_up_tallies
    {"selection", 242, 1408, 0},                                  // write_positions
};
// The costs of a layer that do not grow with the context, with 1024 selected positions and 256 tokens in the tail.
constexpr Cost each_layer[] = {
    {"components", 57747, 39424, 0, counted_kv_heads},             // choose_components
    {"tail scores", 103616, 1310976, 0, counted_kv_heads},         // sum_tail
    {"selection", 3 * 10341.0, 3 * 65731.0, 0, counted_kv_heads},  // narrow_cut, three times
    {"alpha", 58560, 360576, 0, counted_kv_heads* counted_group},
};
constexpr Cost merging[] = {
    {"merge", 42368, 540672, 0, counted_kv_heads * 4},               // sum_values
    {"merge", 140192, 1102848, 0, counted_kv_heads* counted_group},  // merge_states
};
// The cost of a row of [K | V]. One of integers that is read where it lies has its keys' ranges from device memory.
constexpr Cost selected_row(offload::RowFormat format) {
  switch (format) {
    case offload::RowFormat::int8:
      return {"rows", 315, 512, 264};
    case offload::RowFormat::int4:
      return {"rows", 309, 512, 144};
    default:
      return {"rows", 182, 0, 512};
  }
}
constexpr Cost tail_row{"rows", 182, 512, 0};
// Written to device memory by the copy engine, and read; of integers that is read_rows, which writes f16 for the other.
constexpr Cost dense_row(offload::RowFormat format) {
  switch (format) {
    case offload::RowFormat::int8:
      return {"dense stream", 160 + 168, 2 * 264 + 2 * 512, 264};
    case offload::RowFormat::int4:
      return {"dense stream", 160 + 171, 2 * 144 + 2 * 512, 144};
    default:
      return {"dense stream", 160, 2 * 512, 512};
  }
}
// The cost of 1024 bytes of f16 weights.
constexpr Cost weights{"weights", 47.7, 1024, 0};

class Roofline {
 public:
  explicit Roofline(const GpuCard& card) : card_(card) {}

  void add(const Cost& cost, double units) {
    if (units <= 0) return;
    const int busy = cost.blocks > 0 ? std::min(cost.blocks, card_.multiprocessors) : card_.multiprocessors;
    // A card of which only its rates are known issues whatever it must.
    const double issued = cost.instructions > 0 ? units * cost.instructions / (busy * 4 * card_.gigahertz) / 1e6 : 0;
    const std::array<double, 3> ms{issued, units * cost.memory_bytes / card_.memory_rate / 1e6,
                                   units * cost.link_bytes / card_.link_rate / 1e6};
    auto stage = std::find_if(stages_.begin(), stages_.end(), [&](const Sum& sum) { return cost.stage == sum.name; });
    if (stage == stages_.end()) stage = stages_.insert(stage, {cost.stage, {}, {}});
    const auto longest = static_cast<std::size_t>(std::max_element(ms.begin(), ms.end()) - ms.begin());
    stage->by_bound[longest] += ms[longest];
    for (std::size_t i = 0; i < ms.size(); ++i) stage->alone[i] += ms[i];
  }

  std::vector<PredictedStage> stages() const {
    static constexpr const char* bounds[] = {"instructions", "memory", "link"};
    std::vector<PredictedStage> stages;
    for (const Sum& sum : stages_) {
      const auto most = std::max_element(sum.by_bound.begin(), sum.by_bound.end()) - sum.by_bound.begin();
      stages.push_back({sum.name, sum.by_bound[0] + sum.by_bound[1] + sum.by_bound[2], bounds[most], sum.alone[0],
                        sum.alone[1], sum.alone[2]});
    }
    return stages;
  }

 private:
  struct Sum {
    std::string name;
    std::array<double, 3> by_bound;  // ms of the kernels that it bounds
    std::array<double, 3> alone;     // ms of all
  };
  const GpuCard& card_;
  std::vector<Sum> stages_;
};

// Costs of the scan of a step whose columns are counted; of planes of which `bits` are read, 0: all of r components.
const Cost* scan_cost(const DecodeStep& step, int bits) {
  if (bits == 0 && !in_planes(step.columns)) return scan_cost(step.columns);
  const PlaneCost* const planes = plane_cost(bits);
  return planes == nullptr ? nullptr : &planes->scan;
}

// With columns in planes what is counted is all planes of r components, and some numbers of planes.
bool counted(const DecodeStep& step) {
  const ModelConfig& config = *step.config;
  const bool sparq = step.method.name == "sparq" && step.method.rank == counted_rank &&
                     !ranking_options(step.method).per_query_head() && scan_cost(step, 0) != nullptr;
  const bool planes = step.method.name == "planes" && plane_cost(step.method.bits) != nullptr;
  return (sparq || planes || step.method.name == "dense") && !rest_of(step.method).by_scores() &&
         config.kv_heads == counted_kv_heads && config.group_size() == counted_group &&
         config.head_dim == counted_head_dim;
}

double rows(const DecodeStep& step, Place place, Kind kind, double row_bytes) {
  return static_cast<double>(step.counters.at(place, kind)) / row_bytes;
}

}  // namespace

GpuCard parse_card(const std::string& text) {
  GpuCard card;
  char more = 0;
  const int read = std::sscanf(text.c_str(), "%d,%lf,%lf,%lf%c", &card.multiprocessors, &card.gigahertz,
                               &card.memory_rate, &card.link_rate, &more);
  const auto in_range = [](double x) { return x > 0 && x < 1e6; };
  if (read != 4 || !in_range(card.multiprocessors) || !in_range(card.gigahertz) || !in_range(card.memory_rate) ||
      !in_range(card.link_rate)) {
    fail("'{}' is no card; give its multiprocessors, GHz, GB/s of memory and GB/s of the link, as in 34,2.5,448,27.2",
         text);
  }
  return card;
}

std::vector<PredictedStage> predict_stages(const DecodeStep& step, const GpuCard& card) {
  if (!counted(step)) return {};
  const double layers = step.config->global_layers();
  Roofline roofline(card);
  if (step.method.name != "dense") {
    const int bits = step.method.name == "planes" ? step.method.bits : 0;
    const double chunks = static_cast<double>(step.stored) / chunk_tokens * counted_kv_heads * layers;
    roofline.add(bits > 0 ? plane_cost(bits)->components : each_layer[0], layers);
    roofline.add(*scan_cost(step, bits), chunks);
    for (const Cost& cost : {each_layer[1], each_layer[2]}) roofline.add(cost, layers);
    for (const Cost& cost : selection) roofline.add(cost, chunks);
    roofline.add(each_layer[3], layers);
  }
  const Cost selected = selected_row(step.rows), dense = dense_row(step.rows);
  roofline.add(selected, rows(step, Place::link, Kind::rows, selected.link_bytes));
  roofline.add(tail_row, rows(step, Place::device, Kind::rows, tail_row.memory_bytes));
  roofline.add(dense, rows(step, Place::link, Kind::dense, dense.link_bytes));
  for (const Cost& cost : merging) roofline.add(cost, layers);
  roofline.add(weights, static_cast<double>(step.weight_bytes) / 1024);
  return roofline.stages();
}

std::vector<PredictedStage> predict_by_bytes(const DecodeStep& step, const GpuCard& card) {
  const auto link = [&](std::initializer_list<Kind> kinds) {
    double bytes = 0;
    for (const Kind kind : kinds) bytes += static_cast<double>(step.counters.at(Place::link, kind));
    return bytes;
  };
  Roofline roofline(card);
  roofline.add({"column scan", 0, 0, 1}, link({Kind::columns, Kind::scales, Kind::index}));
  roofline.add({"rows", 0, 0, 1}, link({Kind::rows}));
  roofline.add({"dense stream", 0, 0, 1}, link({Kind::dense}));
  roofline.add({"tail", 0, 1, 0}, static_cast<double>(step.counters.total(Place::device)));
  roofline.add({"states", 0, 1, 0}, static_cast<double>(state_bytes(*step.config)));
  roofline.add({"weights", 0, 1, 0}, static_cast<double>(step.weight_bytes));
  return roofline.stages();
}

}  // namespace hayloft::runtime::plan
