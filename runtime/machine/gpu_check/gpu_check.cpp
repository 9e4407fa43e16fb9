#include "runtime/machine/gpu_check/gpu_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/machine/gpu_check/gpu_check_steps.h"

namespace hayloft::runtime::plan {
using namespace check;

namespace {

constexpr std::int64_t long_context = std::int64_t{1} << 20;
constexpr int asked_head_dim = 128;
constexpr int asked_rank = 16;
constexpr std::int64_t asked_rows = 1024;
constexpr double least_scan_share = 0.9;
constexpr double most_selection_share = 0.15;
constexpr double least_fetch_share = 0.8;
constexpr std::uint64_t small_page = 4096;

// A row of `hayloft bench`.
struct BenchRow {
  const Json* row;
  const Json* run;  // the object it is in

  std::int64_t tokens() const { return static_cast<std::int64_t>(number(*row, "tokens")); }
  std::string columns() const { return text(*row, "columns"); }
  std::string link() const {  // each format of columns has its own
    const std::string own = text(*row, "link");
    return own.empty() ? text(*run, "link") : own;
  }
  bool is(const char* method) const { return text(*row, "method") == method; }
  std::int64_t from_store() const { return static_cast<std::int64_t>(number(*row, "k") - number(*row, "window")); }
  double stage_ms(const char* stage) const { return number(part(*row, "stage_ms"), stage); }
  double link_bytes(const char* kind) const { return number(part(*row, "link_bytes"), kind); }
  double host_bytes() const { return number(*row, "host_bytes"); }

  // What a reader of the figures must know: that memory was not pinned.
  std::string notes() const {
    std::string all;
    for (const Json& note : part(*run, "notes")) {
      if (note.is_string()) all += "; " + note.get<std::string>();
    }
    return all;
  }

  double scan_GBps() const {
    const double ms = stage_ms("column scan");
    return ms > 0 ? (link_bytes("columns") + link_bytes("scales")) / ms / 1e6 : 0;
  }
  double fetch_GBps() const {
    const double ms = stage_ms("rows");
    return ms > 0 ? link_bytes("rows") / ms / 1e6 : 0;
  }
};

std::vector<BenchRow> bench_rows(const std::vector<Step>& steps) {
  std::vector<BenchRow> rows;
  for (const Step& step : steps) {
    if (!step.is("hayloft.bench/1") || !step.on_cuda()) continue;
    for (const Json& row : part(*step.data, "rows")) rows.push_back({&row, step.data});
  }
  return rows;
}

// The one of step 1's runs with these columns over the longest context that read them fastest; `from_store` > 0: among
// those that then took so many rows.
std::optional<BenchRow> fastest_scan(const std::vector<BenchRow>& rows, const std::string& columns,
                                     std::int64_t from_store = 0) {
  std::optional<BenchRow> best;
  for (const BenchRow& row : rows) {
    if (!row.is("sparq") || row.columns() != columns || row.scan_GBps() <= 0) continue;
    if (number(*row.row, "r") != asked_rank || number(*row.run, "head_dim") != asked_head_dim) continue;
    if (from_store > 0 && row.from_store() != from_store) continue;
    if (best &&
        (row.tokens() < best->tokens() || (row.tokens() == best->tokens() && row.scan_GBps() <= best->scan_GBps())))
      continue;
    best = row;
  }
  return best;
}

struct LinkRate {
  double value = 0;  // GB/s; 0: not measured
  std::string engine;
  std::uint64_t footprint = 0;
};

// The best engine's rate of a test, over the footprint most like `bytes`.
template <class Chosen>
LinkRate link_rate(const std::vector<Step>& steps, double bytes, const Chosen& chosen) {
  LinkRate best;
  double nearest = INFINITY;
  for (const Step& step : steps) {
    for (const Json& figure : part(part(*step.data, "link"), "figures")) {
      const double footprint = number(figure, "footprint_bytes"), value = number(figure, "value");
      // A run compares with the pages that its keys and values lay on; reports without the field knew small ones only.
      const bool as_keys =
          figure.contains("kv_pages") ? number(figure, "kv_pages") > 0 : number(figure, "page_bytes") == small_page;
      if (!as_keys || footprint <= 0 || !chosen(figure)) continue;
      const double away = std::fabs(std::log(footprint / std::max(bytes, 1.0)));
      if (away > nearest || (away == nearest && value <= best.value)) continue;
      nearest = away;
      best = {value, text(figure, "engine"), static_cast<std::uint64_t>(footprint)};
    }
  }
  return best;
}

Shown judge_scan(const std::vector<Step>& steps, const std::vector<BenchRow>& rows, const std::string& columns) {
  Shown shown{
      fmt::format("step 1 of sparq, r=16 of 128, {} columns, 1M tokens, beside the link's column streams", columns), "",
      fmt::format("{} or more", least_scan_share), Verdict::unmeasured};
  const std::optional<BenchRow> row = fastest_scan(rows, columns);
  if (!row) return shown;
  const LinkRate link = link_rate(
      steps, row->host_bytes(), [&](const Json& figure) { return text(figure, "test") == "column_stream_" + columns; });
  const LinkRate whole = link_rate(steps, row->host_bytes(), [](const Json& figure) {
    return text(figure, "test").rfind("host_to_device", 0) == 0;
  });
  shown.figure = fmt::format("{:.1f} GB/s by {}", row->scan_GBps(), row->link());
  if (link.value > 0) {
    const double share = row->scan_GBps() / link.value;
    shown.figure +=
        fmt::format(": {:.2f} of {:.1f} ({}, over {})", share, link.value, link.engine, format_bytes(link.footprint));
    shown.verdict = met_if(share >= least_scan_share && row->tokens() >= long_context);
  }
  if (whole.value > 0) shown.figure += fmt::format("; {:.2f} of whole copies", row->scan_GBps() / whole.value);
  if (row->tokens() != long_context) shown.figure += fmt::format("; at {} tokens", row->tokens());
  shown.figure += row->notes();
  return shown;
}

Shown judge_selection(const std::vector<BenchRow>& rows) {
  Shown shown{"selection of 1024 from 1M beside step 1, f16 columns", "", fmt::format("below {}", most_selection_share),
              Verdict::unmeasured};
  const std::optional<BenchRow> row = fastest_scan(rows, "f16", asked_rows);
  if (!row) return shown;
  const double selection = row->stage_ms("selection"), scan = row->stage_ms("column scan");
  shown.figure = fmt::format("{:.2f} of {:.2f} ms: {:.3f}", selection, scan, selection / scan);
  if (row->tokens() != long_context) shown.figure += fmt::format("; at {} tokens", row->tokens());
  shown.verdict = met_if(selection / scan < most_selection_share && row->tokens() >= long_context);
  return shown;
}

Shown judge_fetch(const std::vector<Step>& steps, const std::vector<BenchRow>& rows) {
  Shown shown{"fetch of 1024 rows beside the link's gather of rows", "", fmt::format("{} or more", least_fetch_share),
              Verdict::unmeasured};
  const std::optional<BenchRow> row = fastest_scan(rows, "f16", asked_rows);
  if (!row || row->fetch_GBps() <= 0) return shown;
  constexpr int row_bytes = 4 * asked_head_dim;
  const LinkRate link = link_rate(steps, row->host_bytes(), [](const Json& figure) {
    return text(figure, "test") == "row_gather" && text(figure, "order") == "ascending" &&
           number(figure, "piece_bytes") == row_bytes;
  });
  shown.figure = fmt::format("{:.1f} GB/s", row->fetch_GBps());
  if (link.value > 0) {
    const double share = row->fetch_GBps() / link.value;
    shown.figure += fmt::format(": {:.2f} of {:.1f} (over {})", share, link.value, format_bytes(link.footprint));
    shown.verdict = met_if(share >= least_fetch_share && row->tokens() >= long_context);
  }
  if (row->tokens() != long_context) shown.figure += fmt::format("; at {} tokens", row->tokens());
  shown.figure += row->notes();
  return shown;
}

// A whole step: sparq with columns of each format and, for comparison, everything read.
std::vector<Shown> tokens_per_step(const std::vector<BenchRow>& rows) {
  std::vector<Shown> lines;
  for (const BenchRow& row : rows) {
    const bool sparq = row.is("sparq") && row.from_store() != asked_rows;
    if (!sparq && !(row.is("dense") && row.columns() == "f16")) continue;
    Shown shown;
    shown.what =
        fmt::format("{:.0f} layers, {:.0f}:{:.0f} heads of {:.0f}, {} tokens, {} columns, {}",
                    number(*row.run, "layers"), number(*row.run, "query_heads"), number(*row.run, "kv_heads"),
                    number(*row.run, "head_dim"), format_count(row.tokens()), row.columns(), text(*row.row, "attn"));
    shown.figure = fmt::format("{:.2f} ms/token", number(*row.row, "ms_per_token"));
    if (const double floor = number(*row.row, "floor_ms"); floor > 0)
      shown.figure += fmt::format(", floor {:.2f}", floor);
    if (number(*row.row, "measured_layers") != number(*row.run, "layers")) {
      shown.figure += fmt::format(", scaled from {:.0f} layers", number(*row.row, "measured_layers"));
    }
    shown.verdict = Verdict::no_bar;
    if (row.tokens() == long_context && row.columns() == "int4") {
      shown.wanted = "published: 186 (A100)";
    }
    lines.push_back(std::move(shown));
  }
  return lines;
}

}  // namespace

std::vector<Shown> judge_gpu_check(const Json& report) {
  if (!report.is_object() || text(report, "schema") != "hayloft.gpu-check/1") {
    fail(
        "not a report of gpu-check: there is no schema hayloft.gpu-check/1 in it; name the gpu-check.json that it "
        "left");
  }
  const std::vector<Step> steps = steps_of(report);
  const std::vector<BenchRow> rows = bench_rows(steps);
  std::vector<Shown> lines;
  lines.push_back(judge_tests(steps, Checker::none));
  lines.push_back(judge_tests(steps, Checker::sanitizer));
  std::set<std::int64_t> lengths = needle_lengths(steps);
  if (lengths.empty()) lengths = {std::int64_t{1} << 16, std::int64_t{1} << 18, long_context};
  for (const std::int64_t tokens : lengths) lines.push_back(judge_needles(steps, tokens));
  lines.push_back(judge_memory(steps, "device memory, the arena's peak", "peak_bytes"));
  lines.push_back(judge_memory(steps, "device memory, the driver's peak", "driver_peak_bytes"));
  lines.push_back(judge_device(steps));
  for (const char* columns : {"f16", "int8", "int4"}) lines.push_back(judge_scan(steps, rows, columns));
  lines.push_back(judge_selection(rows));
  lines.push_back(judge_fetch(steps, rows));
  for (Shown& shown : tokens_per_step(rows)) lines.push_back(std::move(shown));
  return lines;
}

}  // namespace hayloft::runtime::plan
