#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/text_output.h"
#include "runtime/decode/session.h"
#include "runtime/fidelity/attention_statement.h"
#include "runtime/fidelity/attention_stats.h"
#include "runtime/fidelity/audit.h"
#include "runtime/fidelity/fidelity_control.h"

// Watching the attention of what generate and ask decode.
namespace hayloft::cli {

struct AuditChoices {
  std::optional<runtime::AuditOptions> audit;
  // The share of the attention mass to keep. Where none is said `auto` keeps default_fidelity, unless `fastest`.
  std::optional<double> fidelity;
  bool fastest = false;
  std::string run;    // where what is known of the run goes, as JSON; empty: nowhere
  std::string json;   // where the audit's figures go; empty: nowhere
  std::string stats;  // where the attention statistics go: a table where it ends in .md, else JSON; empty: nowhere

  void check();              // throws Error on what is out of range
  void check_files() const;  // throws Error where one of them cannot be written
};
void add_audit_options(CLI::App& app, AuditChoices& choices);
void add_statement_option(CLI::App& app, AuditChoices& choices);  // --json, which every command has behind --verbose

// --attention-stats by itself, and what it asks for. TextOutput::check the file before.
void add_attention_stats_option(CLI::App& app, std::string& file);
void write_attention_stats(const runtime::AttentionStats& stats, const std::string& file);

// Holds the method that a run decodes with, and its observers: an audit; what keeps a fidelity, which replaces the
// method; and attention statistics. `auto` keeps a fidelity unless that is waived; over ranks it cannot be measured.
class WatchedMethod {
 public:
  // The environment must outlive it. Throws Error on options out of range.
  WatchedMethod(const runtime::MethodOptions& method, const Environment& environment, const AuditChoices& choices);

  const runtime::SharedMethod& method() const;
  // The session decodes with the method from now on, watched.
  void watch(runtime::Session& session);
  void stepped(runtime::Session& session);        // after each step; says on standard error what it has changed
  void decoded(const runtime::Session& session);  // when its last step is done: what it has used is kept
  // Says whether the answers so far were exact, and what is known where they were not.
  runtime::AttentionStatement statement() const;
  // Says whether the answers were exact, prints what has been found, or writes it.
  void finish();

 private:
  AuditChoices choices_;
  bool verbose_;
  runtime::SharedMethod method_;
  std::shared_ptr<runtime::Auditor> auditor_;
  std::shared_ptr<runtime::FidelityControl> fidelity_;
  std::shared_ptr<runtime::AttentionStats> stats_;

  runtime::AttentionStatement statement_;  // of the steps so far, but for what was measured
};

}  // namespace hayloft::cli
