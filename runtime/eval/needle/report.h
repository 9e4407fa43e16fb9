#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/eval/eval.h"
#include "runtime/eval/plot/heatmap.h"

// Reports a needle run for people (lines, a table, a picture) and for programs (JSON).
namespace hayloft::runtime::eval {

struct NeedleReport {
  std::string model;   // a name, not a path
  std::string device;  // the backend's name
  std::uint64_t seed = 0;
  std::vector<EvalRow> rows;      // of the task depths, in the order asked
  std::string prefill = "exact";  // prefill_label of how the contexts were read
  std::string columns = "f16";    // their format
  std::string row_format = "f16";
  std::string weights = "stored";  // the form of the model's
  gpu::DeviceMemory memory = {};   // of the device
  int ranks = 1;                   // that held the contexts together
  bool complete = true;            // every question asked has its row
};

std::string needle_line(const EvalRow& row);             // one question, one line, no newline
std::string needle_summary(const NeedleReport& report);  // a table, one line per method and context, and what it marks
std::string needle_json(const NeedleReport& report);     // schema hayloft.needle/1
Heatmap needle_heatmap(const NeedleReport& report);      // a panel per method: depth by context, share found

}  // namespace hayloft::runtime::eval
