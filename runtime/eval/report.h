#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/text/text_table.h"
#include "runtime/eval/eval.h"
#include "runtime/eval/json.h"
#include "runtime/eval/plot/scatter.h"

// Reports an evaluation for people (tables, a picture) and for programs (JSON). Means over samples, in the order in
// which tasks, lengths and methods were first met.
namespace hayloft::runtime::eval {

struct EvalReport {
  EvalRecipe recipe;
  std::vector<EvalRow> rows;
  double effective_share = 0.856;  // a length is effective for a method whose mean score reaches it
};

std::string eval_line(const EvalRow& row);  // one row for a terminal, no newline

// Tasks by methods at one length: percent of what was asked for, as RULER rounds it, the characters copied, the
// perplexity. The last line is the mean over the tasks scored in percent, where there are several. With many methods
// the table lies on its side, methods by tasks.
TextTable score_table(const EvalReport& report, std::int64_t ctx_size);

// Methods by lengths: those means; then weighted by 1..n from the shortest length to the longest, and by n..1; and the
// effective length, the largest whose mean reaches the share. Empty with fewer than two lengths of such tasks.
TextTable length_table(const EvalReport& report);

// Shows what methods took and how near they came to dense attention, by length.
TextTable cost_table(const EvalReport& report);
// Says how well steps predict their errors; empty where none does.
TextTable coverage_table(const EvalReport& report);

std::vector<std::int64_t> eval_lengths(const EvalReport& report);  // ascending

// All of these. `format` is what a table is printed by, aligned() or the like.
std::string eval_summary(const EvalReport& report, std::string (*format)(const TextTable&));

std::string eval_json(const EvalReport& report);  // schema hayloft.eval-report/1: recipe, means, rows

// The quality that a plot shows: the mean score; where no task is scored in percent the characters copied, or the
// agreement with dense attention (automatic); that agreement; -log10 of the mean KL(dense || method), in which dense
// attention has no place; the share of the softmax that is attended.
enum class EvalQuality : std::uint8_t { automatic, top1, kl, mass };

// The cost that it is drawn against: the bytes read beside the memory and over the link, or these as a share of what
// dense attention reads at that length.
enum class EvalCost : std::uint8_t { bytes, compression };

// A panel per length, a point per method: quality against cost. Nothing when there are no rows to draw; lengths without
// a row of dense attention have no compression.
std::optional<Scatter> eval_scatter(const EvalReport& report, EvalQuality quality = EvalQuality::automatic,
                                    EvalCost cost = EvalCost::bytes);

}  // namespace hayloft::runtime::eval
