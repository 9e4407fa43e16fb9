#include "examples/hayloft/options/exact.h"

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "runtime/attention/method_option_table.h"

namespace hayloft::cli {

void add_exact_options(CLI::App& app, ExactChoices& choices) {
  app.add_flag("--exact", choices.exact, "The text of exact attention, several tokens a pass where drafts pay");
  add_text(
      app, "--draft", "SOURCE,...", [&choices](const std::string& text) { choices.draft = text; },
      "Drafts of --exact: lookup copies from the text, self decodes by sparq, self:METHOD by another, "
      "mtp by the model's own head; none")
      ->default_str("lookup");
  add_text(
      app, "--draft-max", "N",
      [&choices](const std::string& text) { choices.most = read_int("--draft-max", text, 1, 63); },
      "Tokens drafted for a pass at most")
      ->default_str(std::to_string(runtime::DraftOptions().most));
  common(app, Section::attention, {"--exact"});
  advanced(app, Section::attention, {"--draft", "--draft-max"});
}

std::optional<runtime::DraftOptions> ExactChoices::drafts(const CLI::App& app) const {
  if (!exact) {
    if (app.count("--draft-max") > 0) fail("--draft-max goes with --exact");
    if (app.count("--draft") > 0 && draft != "none") fail("--draft {} goes with --exact", draft);
    return std::nullopt;
  }
  runtime::DraftOptions options = runtime::parse_draft(draft);
  if (most) options.most = *most;
  return options;
}

std::optional<runtime::DraftOptions> ExactChoices::drafts(const CLI::App& app, runtime::MethodOptions& method) const {
  const std::optional<runtime::DraftOptions> options = drafts(app);
  if (!options) return options;
  if (app.count("--attn") > 0 && method.name != "dense") {
    fail("--exact attends to everything, and --attn {} does not; leave --attn out, or draft by it: --draft self:{}",
         method.name, method.name);
  }
  for (const char* option : {"--quotes", "--plot"}) {
    const CLI::Option* const given = app.get_option_no_throw(option);
    if (given != nullptr && given->count() > 0) {
      fail("{}: measures steps of one token each, which --exact does not take; use --attn dense, with the same text",
           option);
    }
  }
  for (const char* option : {"--audit", "--audit-json", "--attention-stats", "--fidelity"}) {
    const CLI::Option* const given = app.get_option_no_throw(option);  // not every command has them
    if (given != nullptr && given->count() > 0) {
      fail("{}: answers of --exact are exact, and there is nothing to measure; leave it out", option);
    }
  }
  if (method.name != "dense") {  // which has said what it does not use
    for (const runtime::MethodOption& option : runtime::method_option_table()) {
      if (app.count(runtime::flag(option)) == 0) continue;
      note("note: {} has no effect: not used by --exact; drafts have options of their own, as in self:sparq:k=64\n",
           runtime::flag(option));
    }
  }
  method = runtime::MethodOptions();
  return options;
}

void require_drafts(const std::optional<runtime::DraftOptions>& drafts, const gpu::Backend& backend,
                    const runtime::ModelConfig& config) {
  if (!drafts) return;
  if (drafts->self) runtime::make_method(*drafts->self, config.head_dim)->require_layers(config.global_layers());
  if (backend.tokens_verified_at_once(1) > 1) return;
  fail(
      "--exact: the {} backend verifies one token at a time; use --attn dense, which gives the same text, or --device "
      "cpu",
      backend.name());
}

}  // namespace hayloft::cli
