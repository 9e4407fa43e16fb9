#include "runtime/eval/meter.h"

#include <numeric>
#include <vector>

#include "runtime/fidelity/audit_sample.h"

namespace hayloft::runtime::eval {
namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

void Meter::see(const Step& step, const Method& by) {
  const StepFidelity fidelity = StepSample(step, by).measure(host_);
  recall_ += mean(fidelity.recall);
  mass_ += mean(fidelity.mass);
  error_ += mean(fidelity.error);
  ++count_;
  if (step.estimate == nullptr || step.estimate->error.size() != fidelity.error.size()) return;
  for (std::size_t h = 0; h < fidelity.error.size(); ++h) {
    coverage_.add(double{step.estimate->error[h]}, fidelity.error[h]);
  }
}

void Meter::enter(EvalRow& row) const {
  if (count_ == 0) return;
  row.recall = recall_ / count_;
  row.mass = mass_ / count_;
  row.output_error = error_ / count_;
  row.error_auc = coverage_.auc();
  row.error_within = coverage_.within();
}

}  // namespace hayloft::runtime::eval
