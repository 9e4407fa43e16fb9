#include "examples/hayloft/audit_options.h"

#include <charconv>
#include <filesystem>

#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "runtime/eval/attention_chart.h"

namespace hayloft::cli {
namespace {

runtime::AuditOptions& audit_of(AuditChoices& choices) {
  if (!choices.audit) choices.audit.emplace();
  return *choices.audit;
}

}  // namespace

void AuditChoices::check() {
  if (audit) runtime::check_audit(*audit);
  if (fidelity) runtime::check_fidelity(*fidelity);
}

void AuditChoices::check_files() const {
  TextOutput(run).check();
  TextOutput(json).check();
  TextOutput(stats).check();
}

void add_audit_options(CLI::App& app, AuditChoices& choices) {
  app.add_option_function<std::string>(
         "--audit",
         [&choices](const std::string& text) {
           runtime::AuditOptions& audit = audit_of(choices);
           if (text.empty()) return;
           audit.rate = read_share("--audit", text);
           audit.time_share = 0;
         },
         "Measure a share of the steps against exact attention, by default 1%")
      ->type_name("RATE")
      ->expected(0, 1)
      ->take_last();
  add_text(
      app, "--fidelity", "SHARE",
      [&choices](const std::string& text) {
        choices.fastest = text == "none";
        choices.fidelity.reset();
        if (!choices.fastest) choices.fidelity = read_share("--fidelity", text);
      },
      fmt::format("Attention mass to catch, as in 99%; auto keeps {:g}%; none: fastest",
                  runtime::default_fidelity * 100));
  add_text(
      app, "--audit-json", "FILE",
      [&choices](const std::string& text) {
        audit_of(choices);
        choices.json = text;
      },
      "Write the audit's figures as JSON; - is standard output; implies --audit");
  add_attention_stats_option(app, choices.stats);
  common(app, Section::audit, {"--fidelity", "--audit"});
  advanced(app, Section::audit, {"--audit-json"});
}

void add_statement_option(CLI::App& app, AuditChoices& choices) {
  add_json_option(app, choices.run, "Write what the answers attended to as JSON");
}

void add_attention_stats_option(CLI::App& app, std::string& file) {
  add_text(
      app, "--attention-stats", "FILE", [&file](const std::string& text) { file = text; },
      "Measure the attention of the first 64 steps, slowing them down: its entropy, the keys that hold most of it, "
      "what approximate scores find, what repeats from step to step; and which experts are asked for again; a table "
      "where FILE ends in .md, a picture where in .svg, else JSON");
  advanced(app, Section::audit, {"--attention-stats"});
}

void write_attention_stats(const runtime::AttentionStats& stats, const std::string& file) {
  const runtime::AttentionReport& report = stats.report();
  const std::string ending = std::filesystem::path(file).extension().string();
  const bool picture = runtime::eval::is_picture(file);
  if (report.layers.empty() && (picture || report.experts.empty())) {
    return note("note: --attention-stats: no step was measured, so {} is not written\n", shown(file));
  }
  if (picture) {
    return offload::write_file(file, runtime::eval::render_lines(runtime::eval::attention_chart(report)));
  }
  TextOutput(file).write(ending == ".md" ? runtime::attention_table(report) : runtime::attention_json(report));
}

WatchedMethod::WatchedMethod(const runtime::MethodOptions& method, const Environment& environment,
                             const AuditChoices& choices)
    : choices_(choices), verbose_(environment.verbose) {
  const int head_dim = environment.model->config().head_dim;
  const double usual = method.name == "auto" && !choices.fastest && !over_ranks() ? runtime::default_fidelity : 0;
  const double fidelity = choices.fidelity.value_or(usual);
  if (fidelity > 0)
    fidelity_ = std::make_shared<runtime::FidelityControl>(method, head_dim, fidelity);
  else
    method_ = runtime::make_method(method, head_dim);
  if (choices.audit) auditor_ = std::make_shared<runtime::Auditor>(*environment.backend, *choices.audit);
  if (!choices.stats.empty()) stats_ = std::make_shared<runtime::AttentionStats>();
}

const runtime::SharedMethod& WatchedMethod::method() const {
  return fidelity_ ? fidelity_->method() : method_;
}

void WatchedMethod::watch(runtime::Session& session) {
  session.set_method(method());
  if (auditor_) session.add_observer(auditor_);
  if (fidelity_) session.add_observer(fidelity_);
  if (stats_) session.add_observer(stats_);
}

void WatchedMethod::stepped(runtime::Session& session) {
  if (!fidelity_) return;
  if (fidelity_->update()) session.set_method(fidelity_->method());
  if (const std::string line = fidelity_->take_note(); !line.empty()) note("\n{}\n", line);
}

void WatchedMethod::decoded(const runtime::Session& session) {
  statement_.add(session);
}

runtime::AttentionStatement WatchedMethod::statement() const {
  runtime::AttentionStatement statement = statement_;
  statement.measurable = !fidelity_ && !auditor_;
  const runtime::AuditReport audited = auditor_ ? auditor_->report() : runtime::AuditReport();
  const runtime::RunningStats kept = fidelity_ ? fidelity_->report().measured : runtime::RunningStats();
  if (audited.measured > 0) {
    statement.mass = audited.mass();
    statement.samples = audited.measured;
  } else if (kept.count > 0) {
    statement.mass = kept.mean();
    statement.samples = kept.count;
  }
  return statement;
}

void WatchedMethod::finish() {
  if (auditor_) auditor_->finish();
  if (stats_) write_attention_stats(*stats_, choices_.stats);
  if (statement_.steps > 0) note("attention: {}\n", statement().text(verbose_));
  TextOutput(choices_.run).write(runtime::statement_json(statement()));
  if (fidelity_ && (verbose_ || choices_.fidelity)) note("{}\n", runtime::fidelity_line(fidelity_->report()));
  if (!auditor_) return;
  runtime::AuditReport report = auditor_->report();
  report.methods = statement_.methods;
  if (fidelity_) report.kept = fidelity_->report();
  note("{}{}{}", runtime::audit_summary(report), runtime::audit_warning(report), runtime::audit_table(report));
  TextOutput(choices_.json).write(runtime::audit_json(report));
}

}  // namespace hayloft::cli
