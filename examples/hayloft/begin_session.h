#pragma once

#include <optional>

#include "examples/hayloft/command.h"
#include "examples/hayloft/run_plan.h"
#include "examples/hayloft/saved_context.h"

// Begins a run that goes on from a text or from a saved context.
namespace hayloft::cli {

// announce_plan() of a run behind the saved context, if there is one. Its tokens come on top in `run`. Throws Error
// where that context is of another model, or was saved otherwise than the options given in `app` say.
runtime::plan::Plan announce_session(const CLI::App& app, const Environment& environment,
                                     const std::optional<offload::Snapshot>& saved, PlannedRun& run);

// A session behind the saved context, if there is one, else an empty one; the method keeps what it needs from there on.
// `model` is the folder or the file that the environment's model is from.
runtime::Session begin_session(const Environment& environment, const std::filesystem::path& model,
                               const std::optional<offload::Snapshot>& saved, const runtime::SessionOptions& options,
                               const runtime::Method& method);

}  // namespace hayloft::cli
