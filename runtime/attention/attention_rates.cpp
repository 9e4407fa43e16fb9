#include "runtime/attention/attention_rates.h"

namespace hayloft::runtime {
namespace {

double milliseconds(std::uint64_t bytes, double gigabytes_per_second) {
  return static_cast<double>(bytes) / gigabytes_per_second / 1e6;
}

// Reading what is searched, and selecting from it.
double search_ms(const MethodOptions& method, const Counters& counters, const offload::BlockLayout& layout,
                 const AttentionRates& rates) {
  const std::uint64_t index = counters.at(Place::near, Kind::index);
  const std::uint64_t keys = counters.at(Place::near, Kind::columns) + counters.at(Place::near, Kind::rows);
  if (method.name == "ann") return milliseconds(index + keys, rates.ann_search);
  const std::uint64_t columns = counters.at(Place::link, Kind::columns) + counters.at(Place::link, Kind::scales);
  const double reading = milliseconds(columns, rates.sparq_scan(layout.columns)) +
                         milliseconds(index, rates.sparq_scan(offload::ColumnFormat::f16)) +
                         milliseconds(keys, rates.topk_scan(layout.columns));
  const auto selected = static_cast<double>(counters.at(Place::link, Kind::rows) / layout.row_bytes);
  const double each = keys > 0 ? rates.exact_select_us : columns + index > 0 ? rates.column_select_us : 0;
  return reading + selected * each / 1000;
}

// Rounded figures of `hayloft link -t 1` on an AMD EPYC with AVX-512, heads of 64 in groups of 4.
constexpr AttentionRates cpu_rates = {.column_scan = 16,
                                      .exact_scan = 22,
                                      .row_gather = 16,
                                      .dense = 21,
                                      .tail = 25,
                                      .sparq_tail = 8,
                                      .int8_scan = 8.6,
                                      .int4_scan = 4.6,
                                      .planes_scan = 2,
                                      .row_scan = 8.6,
                                      .causal = 97,
                                      .ann_search = 7.4,
                                      .column_select_us = 0.4,
                                      .exact_select_us = 0.2};

// Bytes over the link by published figures of PCIe 4: 25 GB/s in order, 17 read in place, 10 of scattered rows; the
// exact search runs on the host. What stays on the device is taken to cost a tenth of that.
constexpr AttentionRates gpu_rates = {.column_scan = 17,
                                      .exact_scan = 35,
                                      .row_gather = 10,
                                      .dense = 17,
                                      .tail = 200,
                                      .sparq_tail = 100,
                                      .int8_scan = 17,
                                      .int4_scan = 17,
                                      .planes_scan = 17,
                                      .row_scan = 15,
                                      .causal = 10000,
                                      .ann_search = 35,
                                      .column_select_us = 0.02,
                                      .exact_select_us = 0.2};

}  // namespace

double AttentionRates::sparq_scan(offload::ColumnFormat format) const {
  switch (format) {
    case offload::ColumnFormat::int8:
      return int8_scan;
    case offload::ColumnFormat::int4:
      return int4_scan;
    case offload::ColumnFormat::planes:
      return planes_scan;
    case offload::ColumnFormat::f16:
      break;
  }
  return column_scan;
}

double AttentionRates::topk_scan(offload::ColumnFormat format) const {
  return format == offload::ColumnFormat::f16 ? exact_scan : row_scan;
}

AttentionTime attention_time(const MethodOptions& method, const Counters& counters, const offload::BlockLayout& layout,
                             const AttentionRates& rates, const AttentionRates& alone) {
  AttentionTime ms;
  ms.search = search_ms(method, counters, layout, rates);
  // A list per query head serves one query per row.
  const bool per_query_head = ranking_options(method).per_query_head();
  ms.rows = milliseconds(counters.at(Place::link, Kind::rows), per_query_head ? alone.row_gather : rates.row_gather);
  ms.dense = milliseconds(counters.at(Place::link, Kind::dense), rates.dense);
  const bool scores_tail = method.name == "sparq" || method.name == "planes";
  ms.tail = milliseconds(counters.at(Place::device, Kind::rows), scores_tail ? rates.sparq_tail : rates.tail);
  return ms;
}

std::shared_ptr<const MachineRates> built_in_rates(const std::string& device) {
  const bool cpu = device == "cpu";
  MachineRates rates;
  rates.source = cpu ? "rates built in for a CPU" : "rates built in for a GPU";
  rates.rates = [cpu](int head_dim, int group, std::uint64_t) {
    AttentionRates built_in = cpu ? cpu_rates : gpu_rates;
    built_in.head_dim = head_dim;
    built_in.group = group;
    return built_in;
  };
  if (cpu) rates.integer_rows = cpu_integer_rows, rates.integer_keys = cpu_integer_keys;
  rates.margin = 0.2;
  return std::make_shared<const MachineRates>(std::move(rates));
}

}  // namespace hayloft::runtime
