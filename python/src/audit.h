#pragma once

#include <memory>
#include <string>

#include "runtime/fidelity/audit.h"

namespace hayloft::python {

// Samples of what one session decodes, held against exact attention until finish(). Observing and finish() are for the
// thread that uses the session; the backend outlives it.
class OpenAudit : public runtime::StepObserver {
 public:
  OpenAudit(const gpu::Backend& backend, const runtime::AuditOptions& options) : auditor_(backend, options) {}

  bool wants(int layer, std::int64_t position) override { return !finished_ && auditor_.wants(layer, position); }
  void see(const runtime::Step& step, const runtime::Method& by) override { auditor_.see(step, by); }

  void finish() {
    finished_ = true;
    auditor_.finish();
  }
  std::string json() const { return runtime::audit_json(auditor_.report()); }
  std::string table() const {
    return runtime::audit_summary(auditor_.report()) + runtime::audit_table(auditor_.report());
  }

 private:
  runtime::Auditor auditor_;
  bool finished_ = false;
};

}  // namespace hayloft::python
