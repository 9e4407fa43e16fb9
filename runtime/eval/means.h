#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "runtime/eval/eval.h"

// Means over the samples of an evaluation: what its tables and plots are made of.
namespace hayloft::runtime::eval {

struct Mean {
  double sum = 0;
  int count = 0;

  void add(double value) {
    sum += value;
    ++count;
  }
  void add(const std::optional<double>& value) {
    if (value) add(*value);
  }
  std::optional<double> value() const { return count > 0 ? std::optional(sum / count) : std::nullopt; }
};

// Sums the rows of a method behind one way of reading at one length: of one task, or of all of them.
struct Group {
  std::string task;
  std::int64_t ctx_size = 0;
  std::string reading;  // EvalRow::prefill
  std::string method;   // answer_key
  std::string label;
  bool referred = false;  // behind the first way of reading, as the dense attention that all is held against
  bool dense = false;     // that dense attention
  int block_tokens = 0;   // the largest
  Measure measure = Measure::share;
  Mean score;                         // of perplexity, the logarithm
  std::vector<Mean> accepted_shares;  // by position in the draft; empty where no row has them
  Mean top1, kl, recall, mass, error, error_auc, error_within, attended, elements, near, link, ms, prefill, prepare,
      state;

  void add(const EvalRow& row) {
    score.add(row.measure == Measure::perplexity ? std::log(row.score) : row.score);
    top1.add(row.top1);
    kl.add(row.kl);
    accepted_shares.resize(std::max(accepted_shares.size(), row.accepted_shares.size()));
    for (std::size_t i = 0; i < row.accepted_shares.size(); ++i) accepted_shares[i].add(row.accepted_shares[i]);
    recall.add(row.recall);
    mass.add(row.mass);
    error.add(row.output_error);
    error_auc.add(row.error_auc);
    error_within.add(row.error_within);
    attended.add(row.attended_share);
    elements.add(row.elements_per_token);
    near.add(row.near_bytes_per_token);
    link.add(row.link_bytes_per_token);
    ms.add(row.ms_per_token);
    prefill.add(row.prefill_seconds);
    prepare.add(row.prepare_seconds);
    state.add(static_cast<double>(row.state_bytes));
    block_tokens = std::max(block_tokens, row.block_tokens);
  }

  // Returns the mean of every position; their sum says how many tokens of a draft are accepted.
  std::vector<double> accepted_means() const {
    std::vector<double> means;
    for (const Mean& share : accepted_shares) means.push_back(share.value().value_or(0));
    return means;
  }
  Mean accepted() const {
    Mean tokens;
    const std::vector<double> means = accepted_means();
    if (!means.empty()) tokens.add(std::accumulate(means.begin(), means.end(), 0.0));
    return tokens;
  }

  double mean_score() const {
    const double mean = score.value().value_or(0);
    return measure == Measure::perplexity ? std::exp(mean) : mean;
  }
};

// Groups rows in the order in which they were first met; by_task: a group per task, else one for all tasks of a length.
// ctx_size: rows of this length only.
std::vector<Group> group_rows(const std::vector<EvalRow>& rows, bool by_task,
                              std::optional<std::int64_t> ctx_size = std::nullopt);

// Names a method behind one way of reading. Labels name the way where rows have several.
struct MethodName {
  std::string key, label;  // answer_key
};
std::vector<MethodName> methods_of(const std::vector<EvalRow>& rows);  // in the order in which they were first met

// Returns what tells a row's method and way of reading from others.
std::string answer_key(const EvalRow& row);

// The mean over the tasks at one length that have this measure. None for a method that lacks one which another method
// has: means over different tasks say nothing of methods.
std::optional<double> mean_over_tasks(const std::vector<Group>& by_task, const std::string& method,
                                      std::int64_t ctx_size, Measure measure);

}  // namespace hayloft::runtime::eval
