#include "runtime/plan/gpu_roofline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>

#include "gpu/cuda_memory.h"
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
// cache has them for the second time. Names beside them are those that kernels had when they were counted: a pass over
// keys now does what narrow_cut, add_up_tallies and tally_chunks did, choose_components what sum_tail did, attend_rows
// what sum_values did, and the last block of a scan, of bounds and of what writes positions what normalise, list_strips
// and weigh_selection did.
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
const Cost& scan_cost(offload::ColumnFormat format) {
  return std::find_if(std::begin(scan_costs), std::end(scan_costs),
                      [&](const ScanCost& cost) { return cost.format == format; })
      ->scan;
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
const PlaneCost& plane_cost(int bits) {  // of so many, or of the next number that was counted
  const auto* const found =
      std::find_if(std::begin(plane_costs), std::end(plane_costs), [&](const PlaneCost& c) { return c.bits >= bits; });
  return found == std::end(plane_costs) ? plane_costs[std::size(plane_costs) - 1] : *found;
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
// With bounds of strips in place of logits, where the columns are those that the device has: what a scan issues more
// for finding them, and all that it moves besides them; then by 256 tokens of a KV head what finds the strips that
// matter.
constexpr double held_instructions = 313, strip_bytes = 512;
constexpr Cost strip_selection[] = {
    selection[0],
    {"selection", 20.6, 192, 0},                  // bound_strips
    {"selection", 16, 160, 0, counted_kv_heads},  // list_strips
};
// By 256 listed tokens, whose scores and keys are made again; neighbours in memory have a third of the pieces of 32
// bytes in common. The passes over keys follow. How many strips are listed for each selected position is assumed: twice
// to four times as many as the best positions lie in where logits spread by 2 or more (docs/internals/cuda.md).
constexpr Cost rank_strips{"selection", 2525, 11264, 0};
constexpr double listed_strips = 4;
// The costs of a layer that do not grow with the context, with 1024 selected positions and 256 tokens in the tail.
constexpr Cost choosing{"components", 57747, 39424, 0, counted_kv_heads};              // choose_components
constexpr Cost tail_scores{"components", 103616, 1310976, 0, counted_kv_heads};        // the same, sum_tail once
constexpr Cost narrowing{"selection", 3 * 10341.0, 3 * 65731.0, 0, counted_kv_heads};  // narrow_cut, three times
constexpr Cost alpha{"selection", 58560, 360576, 0, counted_kv_heads};                 // weigh_selection
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
// Written to device memory by the copy engine, and read by each token of a pass; of integers that is read_rows, which
// writes f16 for the other.
constexpr Cost dense_row(offload::RowFormat format, int tokens) {
  const double instructions = 160.0 * tokens, read = 512.0 * tokens;
  switch (format) {
    case offload::RowFormat::int8:
      return {"dense stream", instructions + 168, 2 * 264 + 512 + read, 264};
    case offload::RowFormat::int4:
      return {"dense stream", instructions + 171, 2 * 144 + 512 + read, 144};
    default:
      return {"dense stream", instructions, 512 + read, 512};
  }
}
// The instructions of 1024 weights by the bits of a code, of the loop of packed_token_kernel as ptxas makes it of its
// form with minima, rounding of inputs included; 0: of one_token_kernel.
constexpr double product_instructions[] = {95.4, 0, 139, 184, 122, 157, 186, 0, 112};
// The kernels that one layer launches, as tests/simt/step_launches_test.cpp counts them, with four products of weights
// that are packed alike and without the chunks of what is streamed; of recurrent layers, 18 as docs/internals/cuda.md
// once counted, less the three that sums, flag and norms are spared. One kernel selects from short lists, where others
// take three, one lists strips, and one finds out which rows the device keeps, as another does of planes; three fetch
// columns ahead. A kernel of its own normalises where the scan does not. Each of them is assumed to cost a step
// launch_ms, whether it is launched by itself or in a graph.
constexpr double launches_of_selecting = 16, launches_of_kept = 1, launches_of_strips = 1, launches_of_others = 10,
                 launches_of_recurrent = 15, launches_of_fetched = 3, launches_spared_by_short_lists = 2,
                 launches_of_normalising = 1;
constexpr double short_list_tokens = 65536;
constexpr double launches_of_further = 3;  // tokens of a pass: attention to the tail and to the store, and the merge
constexpr double launch_ms = 0.003;
constexpr double near_rate = 40;  // GB/s of the machine's memory: four fifths of two channels of DDR4-3200

// Returns whether the last block of a KV head's scan normalises, if the newest tokens are a chunk.
bool scan_normalises(const DecodeStep& step) {
  const ModelConfig& config = *step.config;
  const double lists = std::max(1, config.global_layers() * config.kv_heads);
  const double chunks = static_cast<double>(step.counters.positions_scored) / lists / chunk_tokens;
  return !in_planes(step.columns) && config.group_size() <= gpu::cuda_most_normalised_heads &&
         config.group_size() * (std::ceil(chunks) + 1) <= static_cast<double>(gpu::cuda_most_normalised);
}

class Roofline {
 public:
  explicit Roofline(const GpuCard& card) : card_(card) {}

  void add(const Cost& cost, double units, Basis basis) {
    if (units <= 0) return;
    const int busy = cost.blocks > 0 ? std::min(cost.blocks, card_.multiprocessors) : card_.multiprocessors;
    // A card of which only its rates are known issues whatever it must.
    const double issued = busy > 0 ? units * cost.instructions / (busy * 4 * card_.gigahertz) / 1e6 : 0;
    const std::array<double, 3> ms{issued, units * cost.memory_bytes / card_.memory_rate / 1e6,
                                   units * cost.link_bytes / card_.link_rate / 1e6};
    Sum& stage = at(cost.stage, basis);
    const auto longest = static_cast<std::size_t>(std::max_element(ms.begin(), ms.end()) - ms.begin());
    stage.by_bound[longest] += ms[longest];
    for (std::size_t i = 0; i < ms.size(); ++i) stage.alone[i] += ms[i];
  }
  void read_near(double bytes) {
    if (bytes > 0) at("experts near", Basis::assumed).by_bound[4] += bytes / near_rate / 1e6;
  }
  void launch(double kernels) { at("launches", Basis::assumed).by_bound[3] += kernels * launch_ms; }

  std::vector<PredictedStage> stages() const {
    static constexpr const char* bounds[] = {"instructions", "memory", "link", "launch", "host memory"};
    std::vector<PredictedStage> stages;
    for (const Sum& sum : stages_) {
      const auto most = std::max_element(sum.by_bound.begin(), sum.by_bound.end()) - sum.by_bound.begin();
      double ms = 0;
      for (const double each : sum.by_bound) ms += each;
      stages.push_back({sum.name, ms, bounds[most], sum.alone[0], sum.alone[1], sum.alone[2], sum.basis});
    }
    return stages;
  }

 private:
  struct Sum {
    std::string name;
    Basis basis = Basis::counted;      // the weakest of what was added
    std::array<double, 5> by_bound{};  // ms of the kernels that it bounds
    std::array<double, 3> alone{};     // ms of all
  };
  Sum& at(const char* stage, Basis basis) {
    auto found = std::find_if(stages_.begin(), stages_.end(), [&](const Sum& sum) { return sum.name == stage; });
    if (found == stages_.end()) found = stages_.insert(found, {stage, basis});
    found->basis = std::max(found->basis, basis);
    return *found;
  }
  const GpuCard& card_;
  std::vector<Sum> stages_;
};

// What a step's shape is in parts of the counted one.
struct RelativeShape {
  explicit RelativeShape(const ModelConfig& config)
      : kv(static_cast<double>(config.kv_heads) / counted_kv_heads),
        group(static_cast<double>(config.group_size()) / counted_group),
        head_dim(static_cast<double>(config.head_dim) / counted_head_dim) {}
  Basis basis() const { return kv == 1 && group == 1 && head_dim == 1 ? Basis::counted : Basis::scaled; }

  double kv;
  double group;
  double head_dim;
};

Cost scaled(Cost cost, double factor) {
  cost.instructions *= factor;
  cost.memory_bytes *= factor;
  cost.link_bytes *= factor;
  return cost;
}
Cost with_blocks(Cost cost, double factor) {
  if (cost.blocks > 0) cost.blocks = std::max(1, static_cast<int>(cost.blocks * factor));
  return cost;
}

// Returns the instructions of the products of a step's packed weights.
double product_work(const DecodeStep& step) {
  double multiplied = 0;
  for (std::size_t bits = 0; bits < step.weights.weights_per_step.size(); ++bits) {
    multiplied += static_cast<double>(step.weights.weights_per_step[bits]) / 1024 * product_instructions[bits];
  }
  return multiplied;
}

// Returns the share of the columns over the link that come while the link has nothing else to do: right guesses, of as
// many as it brings in the time of weights and states. Wrong ones take that time too.
double fetched_ahead(const DecodeStep& step, const GpuCard& card) {
  const double columns =
      static_cast<double>(step.counters.at(Place::link, Kind::columns) + step.counters.at(Place::link, Kind::scales)) *
      (1 - step.columns_held);
  if (step.columns_again <= 0 || columns <= 0) return 0;
  Roofline beside(card);
  beside.add(
      {"weights", product_work(step) * step.tokens, static_cast<double>(step.weights.bytes_per_pass(step.tokens)), 0},
      1, Basis::counted);
  beside.add({"states", 0, 1, 0}, static_cast<double>(state_bytes(*step.config)), Basis::bytes);
  double ms = 0;
  for (const PredictedStage& stage : beside.stages()) ms += stage.ms;
  return step.columns_again * std::min(1.0, ms * 1e6 * card.link_rate / columns);
}

// Adds the ranking of positions by scores of columns, where they are. `ahead`: the share of the columns over the link
// that are there when the scan begins.
void add_ranking(const DecodeStep& step, const RelativeShape& shape, double ahead, Roofline& roofline) {
  const double layers = step.config->global_layers();
  const auto on_link = [&](Kind kind) { return static_cast<double>(step.counters.at(Place::link, kind)); };
  const double columns = on_link(Kind::columns) + on_link(Kind::scales);
  const double chunks = static_cast<double>(step.counters.positions_scored) / chunk_tokens;
  const bool sparq = step.method.name == "sparq", planes = step.method.name == "planes";
  const Basis as_shaped = shape.basis();
  if (!sparq && !planes) {
    roofline.add({"column scan", 0, 0, 1}, columns * (1 - step.columns_held) + on_link(Kind::index), Basis::bytes);
    roofline.add({"column scan", 0, 1, 0}, columns * step.columns_held, Basis::bytes);
  } else {
    const bool in_bits = in_planes(step.columns);
    const int bits = planes ? step.method.bits : 0;
    // Besides the group's queries, a scan's instructions go by components, or by bits.
    Cost scan = in_bits ? plane_cost(bits).scan : scan_cost(step.columns);
    const double parts = sparq ? static_cast<double>(step.method.rank) / counted_rank
                               : static_cast<double>(bits) / plane_cost(bits).bits;
    const bool by_head = ranking_options(step.method).per_query_head();
    const double query = shape.group * (by_head ? counted_group : 1);
    scan.instructions *= query * parts;
    if (step.by_strips > 0) {
      scan.instructions += held_instructions;
      scan.memory_bytes = strip_bytes;
    }
    scan.memory_bytes =
        scan.memory_bytes * shape.group + columns / chunks * (step.columns_held + (1 - step.columns_held) * ahead);
    scan.link_bytes = columns / chunks * (1 - step.columns_held) * (1 - ahead);
    const Basis basis = parts == 1 && !by_head ? as_shaped : Basis::scaled;
    const Cost components = in_bits ? plane_cost(bits).components : choosing;
    roofline.add(with_blocks(scaled(components, shape.kv * shape.group * shape.head_dim), shape.kv), layers, basis);
    roofline.add(scan, chunks, ahead > 0 ? Basis::assumed : basis);
  }
  const double heads = shape.kv * shape.group;
  if (sparq || planes) roofline.add(with_blocks(scaled(tail_scores, heads), shape.kv), layers, as_shaped);
  const Basis selected = sparq || planes ? as_shaped : Basis::scaled;
  roofline.add(with_blocks(scaled(narrowing, heads), shape.kv), layers, selected);
  const auto add_selection = [&](Cost cost, double units, Basis basis) {
    if (cost.blocks > counted_kv_heads && scan_normalises(step)) {
      cost.stage = "column scan", cost.blocks = counted_kv_heads;
    }
    roofline.add(with_blocks(scaled(cost, shape.group), cost.blocks > counted_kv_heads ? heads : shape.kv), units,
                 basis);
  };
  if (step.by_strips > 0) {
    const double strips = listed_strips * static_cast<double>(step.by_strips);
    const double listed = std::min(chunks, strips * gpu::cuda_strip_tokens / chunk_tokens);
    for (const Cost& cost : strip_selection) add_selection(cost, chunks, selected);
    add_selection(rank_strips, listed, Basis::assumed);
    for (std::size_t pass = 2; pass < std::size(selection); ++pass) {
      add_selection(selection[pass], listed, Basis::assumed);
    }
  } else {
    for (const Cost& cost : selection) add_selection(cost, chunks, selected);
  }
  if (sparq) roofline.add(with_blocks(scaled(alpha, heads), shape.kv), layers, as_shaped);
}

}  // namespace

const char* name(Basis basis) {
  constexpr const char* names[] = {"counted", "scaled", "bytes", "assumed"};
  return names[static_cast<std::size_t>(basis)];
}

std::vector<PredictedStage> predict_stages(const DecodeStep& step, const GpuCard& card) {
  const ModelConfig& config = *step.config;
  const RelativeShape shape(config);
  const double layers = config.global_layers();
  Roofline roofline(card);
  const auto ranked_by = [&](Kind kind) { return step.counters.at(Place::link, kind); };
  const bool selects = ranked_by(Kind::columns) + ranked_by(Kind::scales) + ranked_by(Kind::index) > 0;
  const double ahead = selects ? fetched_ahead(step, card) : 0;
  if (selects) add_ranking(step, shape, ahead, roofline);

  const offload::BlockLayout layout({1, config.kv_heads, config.head_dim, chunk_tokens, step.columns, step.rows});
  const auto row_bytes = static_cast<double>(layout.row_bytes);
  const auto rows = [&](Place place, Kind kind, double bytes) {
    return static_cast<double>(step.counters.at(place, kind)) / bytes;
  };
  // A row's instructions go by its components and by the queries of the group, those of fewer than four as of four.
  const double row = shape.head_dim * std::max(1.0, shape.group);
  const auto row_cost = [&](Cost cost, double link_bytes) {
    cost.instructions *= row;
    cost.memory_bytes *= shape.head_dim;
    cost.link_bytes = link_bytes;
    return cost;
  };
  const double f16_row = 4.0 * config.head_dim;
  const double tokens = step.tokens;
  const double listed = rows(Place::link, Kind::rows, row_bytes);
  const Basis basis = shape.basis();
  roofline.add(row_cost(selected_row(step.rows), row_bytes), listed * (1 - step.rows_held), basis);
  roofline.add(row_cost(tail_row, 0), tokens * rows(Place::device, Kind::rows, f16_row) + listed * step.rows_held,
               basis);
  roofline.add(row_cost(dense_row(step.rows, step.tokens), row_bytes), rows(Place::link, Kind::dense, row_bytes),
               basis);
  const double heads = shape.kv * shape.group;
  for (const Cost& cost : merging) {
    roofline.add(with_blocks(scaled(cost, heads * shape.head_dim), heads), layers * tokens, basis);
  }
  // Behind a pass of which not all tokens stay, a state is made again from the one before.
  roofline.add({"states", 0, step.tokens > 1 ? 2.0 : 1.0, 0}, static_cast<double>(state_bytes(config)), Basis::bytes);
  const double multiplied = product_work(step);
  const auto read = static_cast<double>(step.weights.bytes_per_pass(step.tokens));
  roofline.add({"weights", multiplied * tokens, read, 0}, 1, Basis::counted);
  roofline.read_near(static_cast<double>(step.weights.near_bytes_per_step) *
                     std::min(tokens, step.weights.tokens_of_all_experts));
  if (step.weights.link_bytes_per_step > 0) {
    roofline.add(
        {"experts over the link", 0, 0, 1},
        static_cast<double>(step.weights.link_bytes_per_step) * std::min(tokens, step.weights.tokens_of_all_experts),
        Basis::assumed);
  }
  const double recurrent = static_cast<double>(std::count(config.recurrent.begin(), config.recurrent.end(), true));
  const double list = static_cast<double>(step.counters.positions_scored) / std::max(1.0, layers * config.kv_heads);
  const bool planes = in_planes(step.columns);
  const double selecting =
      launches_of_selecting + (scan_normalises(step) ? 0 : launches_of_normalising) +
      (step.by_strips > 0          ? launches_of_strips
       : list <= short_list_tokens ? -launches_spared_by_short_lists
                                   : 0) +
      (ahead > 0 ? launches_of_fetched : 0) +
      launches_of_kept * ((planes && step.columns_held > 0 ? 1 : 0) + (step.rows_held > 0 ? 1 : 0));
  roofline.launch(layers * (selects ? selecting : launches_of_others) + recurrent * launches_of_recurrent +
                  (config.layers - layers - recurrent) * launches_of_others +
                  (config.layers - recurrent) * (tokens - 1) * launches_of_further);
  return roofline.stages();
}

}  // namespace hayloft::runtime::plan
