#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "offload/text/text_table.h"
#include "runtime/eval/report.h"

namespace hayloft::cli {

// Says where an evaluation's results go, and how they are shown.
struct EvalOutputs {
  void add_options(CLI::App& app);
  // Draws everything that is there into the file of --plot. Throws Error when there is nothing to draw.
  void write_plot(const runtime::eval::EvalReport& report) const;

  std::string out, json, plot;  // files; empty: not asked for
  std::string stats;            // of --attention-stats
  std::string (*format)(const TextTable&) = aligned;
  double effective_percent = 85.6;
  runtime::eval::EvalQuality plot_by = runtime::eval::EvalQuality::automatic;
  runtime::eval::EvalCost plot_against = runtime::eval::EvalCost::bytes;
};

}  // namespace hayloft::cli
