#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "gpu/backend.h"
#include "runtime/decode/drafting.h"

// --exact: answers of exact attention, several tokens a pass.
namespace hayloft::cli {

struct ExactChoices {
  bool exact = false;
  std::string draft = "lookup";
  std::optional<int> most;  // tokens drafted for a pass

  // Returns what drafts; none without --exact. Throws Error where --draft or --draft-max goes with nothing.
  std::optional<runtime::DraftOptions> drafts(const CLI::App& app) const;
  // The same of a command that decodes by one method, which is then `dense`. Throws Error also where something else
  // that was typed contradicts it.
  std::optional<runtime::DraftOptions> drafts(const CLI::App& app, runtime::MethodOptions& method) const;
};
void add_exact_options(CLI::App& app, ExactChoices& choices);

// Throws Error where the backend cannot verify more than a token at a time, or the method that drafts has a k for a
// layer that the model lacks.
void require_drafts(const std::optional<runtime::DraftOptions>& drafts, const gpu::Backend& backend,
                    const runtime::ModelConfig& config);

}  // namespace hayloft::cli
