#include "examples/hayloft/link_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "offload/text/format.h"

namespace hayloft::cli {
namespace {

// Says what a figure is, and how far its turns lay apart, where that is known.
struct Row {
  std::string what;
  int head_dim = 0;  // 0: of none
  int group = 0;
  double rate = 0;
  const char* unit = "";
  const runtime::plan::RateSpread* spread = nullptr;

  bool is_time() const { return std::string_view(unit) == "us"; }
  double slowest() const { return is_time() ? rate / spread->slowest : rate * spread->slowest; }
  double fastest() const { return is_time() ? rate / spread->fastest : rate * spread->fastest; }
};

const runtime::plan::RateSpread* find_spread(const runtime::plan::MachineProfile& profile, const char* field,
                                             int head_dim, int group, std::size_t skip = 0) {
  for (const runtime::plan::RateSpread& spread : profile.spreads) {
    const bool is = spread.what == field && spread.head_dim == head_dim && !spread.small &&
                    (spread.group == group || spread.group == 0);
    if (is && skip-- == 0) return &spread;
  }
  return nullptr;
}

// Every figure that was measured.
std::vector<Row> rows_of(const runtime::plan::MachineProfile& profile) {
  std::vector<Row> all;
  const char* field = "";
  std::size_t nth = 0;
  const auto row = [&](const std::string& what, int d, int group, double rate, const char* unit) {
    if (rate > 0) all.push_back({what, d, group, rate, unit, find_spread(profile, field, d, group, nth)});
  };
  const bool one_node = find_spread(profile, "near_read_GBps", 0, 0) == nullptr;
  field = one_node ? "near_reads" : "near_read_GBps";
  nth = one_node && !profile.near_reads.empty() ? profile.near_reads.size() - 1 : 0;
  row("near-memory read", 0, 0, profile.near_read, "GB/s");
  field = "near_reads";
  for (nth = 0; nth < profile.near_reads.size(); ++nth) {
    const runtime::plan::NearRead& read = profile.near_reads[nth];
    row(fmt::format("near-memory read, node {}, {} thread{}", read.node, read.threads, read.threads == 1 ? "" : "s"), 0,
        0, read.rate, "GB/s");
  }
  nth = 0;
  field = "weight_stream_GBps";
  row("weights, one token", 0, 0, profile.weight_stream, "GB/s");
  field = "matmul_GFLOPps";
  row("weights, many tokens", 0, 0, profile.matmul, "GFLOP/s");
  field = "layer_overhead_us";
  row("overhead of a layer", 0, 0, profile.layer_overhead_us, "us");
  for (const runtime::AttentionRates& rates : profile.attention) {
    for (const offload::ColumnTraits& traits : offload::column_traits) {
      if (traits.rate_label == nullptr) continue;
      field = traits.rate;
      row(traits.rate_label, rates.head_dim, rates.group, rates.sparq_scan(traits.format), "GB/s");
    }
    field = "exact_scan_GBps";
    row("exact scan", rates.head_dim, rates.group, rates.exact_scan, "GB/s");
    field = "row_scan_GBps";
    row("exact scan, rows", rates.head_dim, rates.group, rates.row_scan, "GB/s");
    field = "ann_search_GBps";
    row("search of an index", rates.head_dim, rates.group, rates.ann_search, "GB/s");
    field = "";
    row("selecting a position, columns", rates.head_dim, rates.group, rates.column_select_us, "us");
    field = "";
    row("selecting a position, exact", rates.head_dim, rates.group, rates.exact_select_us, "us");
    field = "row_gather_GBps";
    row("row gather", rates.head_dim, rates.group, rates.row_gather, "GB/s");
    field = "dense_GBps";
    row("dense", rates.head_dim, rates.group, rates.dense, "GB/s");
    field = "tail_GBps";
    row("tail", rates.head_dim, rates.group, rates.tail, "GB/s");
    field = "sparq_tail_GBps";
    row("tail, sparq", rates.head_dim, rates.group, rates.sparq_tail, "GB/s");
    field = "causal_GFLOPps";
    row("prompt", rates.head_dim, rates.group, rates.causal, "GFLOP/s");
  }
  return all;
}

}  // namespace

std::string rates_table(const runtime::plan::MachineProfile& profile) {
  std::string text =
      fmt::format("{}; {} threads, over {}\n\n| what | head dimension | group | rate | slowest | fastest | turns | |\n",
                  profile.machine, profile.threads, format_bytes(profile.footprint_bytes));
  text += "|---|---:|---:|---:|---:|---:|---:|---|\n";
  const auto size = [](int n) { return n ? fmt::format("{}", n) : std::string(); };
  for (const Row& row : rows_of(profile)) {
    const std::string spread =
        row.spread ? fmt::format("{:.4g} | {:.4g} | {}", row.slowest(), row.fastest(), row.spread->runs) : " | | ";
    text += fmt::format("| {} | {} | {} | {:.4g}{} | {} | {} |\n", row.what, size(row.head_dim), size(row.group),
                        row.rate, row.spread && row.spread->unreliable() ? "*" : "", spread, row.unit);
  }
  const bool fewer_are_faster =
      std::any_of(profile.near_reads.begin(), profile.near_reads.end(), [&](const runtime::plan::NearRead& read) {
        return read.threads < profile.threads && read.rate > profile.near_read;
      });
  if (fewer_are_faster) {
    text +=
        fmt::format("\nThe profile's near-memory read is by all {} threads, as every search runs; -t gives it fewer.\n",
                    profile.threads);
  }
  return text;
}

std::string rates_csv(const runtime::plan::MachineProfile& profile) {
  std::string text = "what,head_dim,group,rate,unit,slowest,fastest,turns\n";
  for (const Row& row : rows_of(profile)) {
    text += fmt::format("\"{}\",{},{},{:.6g},{},", row.what, row.head_dim, row.group, row.rate, row.unit);
    text += row.spread ? fmt::format("{:.6g},{:.6g},{}\n", row.slowest(), row.fastest(), row.spread->runs) : ",,\n";
  }
  return text;
}

}  // namespace hayloft::cli
