#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/fidelity/audit_sample.h"
#include "runtime/fidelity/fidelity_control.h"
#include "runtime/fidelity/running_stats.h"

// Reports what an audit has found, for people (a table, a warning) and for programs (JSON).
namespace hayloft::runtime {

// One KV head of one layer. Mass and error are taken over its query heads too.
struct AuditCell {
  std::int64_t samples = 0;
  RunningStats recall;
  RunningStats mass;
  RunningStats error;
};

// The figures of a run by layer and KV head, and what measuring them took.
struct AuditReport {
  std::map<int, std::vector<AuditCell>> layers;  // by the model's layer: [Hkv]
  std::map<int, std::int64_t> k;                 // of the layer's last sample

  std::int64_t calls = 0;     // steps x layers that were observed
  std::int64_t chosen = 0;    // of those, to be samples
  std::int64_t measured = 0;  // of those; the others were dropped or still wait
  std::int64_t dropped = 0;
  double decode_seconds = 0;   // of the observed steps; on the CPU backend of processor time, divided by its threads
  double copy_seconds = 0;     // that the decoding thread spent on copying samples
  double measure_seconds = 0;  // of processor time, divided by the threads of the backend

  std::map<std::string, std::int64_t> methods;  // steps x layers that each has attended, where that is known
  std::optional<FidelityReport> kept;           // of a run that was to keep a fidelity

  void add(const StepFidelity& fidelity);
  double mass() const;  // the mean over the heads; 0 where nothing was measured
  double cost() const;  // the share of the decoding time that the audit took, if all of it came out of that time
};

// Says what was sampled, and the means over all heads with the worst of them: two lines, or one where nothing was
// measured.
std::string audit_summary(const AuditReport& report);

// A line per layer and head; of more than `most_rows` those that catch least of the attention mass, and a line that
// says so. Empty where nothing was measured, else it ends with a newline.
std::string audit_table(const AuditReport& report, std::size_t most_rows = 10);

// A line saying which heads catch less than `least` of the attention mass on average, and what to do; empty when all
// catch enough.
std::string audit_warning(const AuditReport& report, double least = 0.9);

std::string audit_json(const AuditReport& report);  // schema hayloft.audit/1

}  // namespace hayloft::runtime
