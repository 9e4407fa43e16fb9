#include "examples/hayloft/begin_session.h"

#include "examples/hayloft/options/kept.h"
#include "runtime/context/ingest.h"

namespace hayloft::cli {

runtime::plan::Plan announce_session(const CLI::App& app, const Environment& environment,
                                     const std::optional<offload::Snapshot>& saved, PlannedRun& run) {
  if (saved) {
    saved->require_model(runtime::identity_of(run.model, environment.model->run_options()));
    check_kept_layout(app, run.session, runtime::as_read(*saved, run.session), saved->path().string());
    add_saved(environment, *saved, run);
  } else {
    environment.model->expect_positions(run.tokens);
  }
  return announce_plan(environment, run, environment.profile());
}

runtime::Session begin_session(const Environment& environment, const std::filesystem::path& model,
                               const std::optional<offload::Snapshot>& saved, const runtime::SessionOptions& options,
                               const runtime::Method& method) {
  if (saved) {
    const runtime::ModelSource source{*environment.model, *environment.tokenizer, model};
    return open_saved(environment, source, *saved, options, method);
  }
  runtime::Session session(*environment.model, *environment.arena, options);
  session.attach_method(method);
  return session;
}

}  // namespace hayloft::cli
