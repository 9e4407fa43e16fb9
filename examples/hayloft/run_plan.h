#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "examples/hayloft/process/environment.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/plan/plan.h"

// Prints what a long command says of itself before it begins, and what it is held to at its end.
namespace hayloft::cli {

struct PlannedRun {
  std::filesystem::path model;
  runtime::SessionOptions session;
  std::vector<runtime::MethodOptions> methods;
  std::int64_t tokens = 0;         // of context, at the end
  std::int64_t mapped_tokens = 0;  // of them, in blocks of a saved context that stay in its file
  int checkpoints = 0;             // that a context keeps, when it is saved; 0: the model's kind decides
  int sessions = 1;                // that decode at once, each behind the context
  bool saves = false;              // whether it saves its context, as ingest does
};

// A run that goes on behind a saved context: its tokens come on top, its block size and columns are the run's.
void add_saved(const Environment& environment, const offload::Snapshot& snapshot, PlannedRun& run);

// Prints the plan's totals in one line on standard error, and another one when the context is longer than what the
// model was made for. Throws Error with the numbers when the run does not fit. Times need a profile of as many threads.
runtime::plan::Plan announce_plan(const Environment& environment, const PlannedRun& run,
                                  const std::optional<runtime::plan::MachineProfile>& profile);

// Says in a line on standard error what keeps a sequence of so many tokens from being answered, or answered well:
// memory for keys and values, or what the model was made for.
void note_length(const Environment& environment, const PlannedRun& run);

// Divides the device's memory between experts, columns and rows by the run, unless another run has. Throws Error.
void divide_device(const Environment& environment, const PlannedRun& run);

// "; predicted 12.3 s" for reading the whole context, nothing without a profile.
std::string predicted_reading(const runtime::plan::Plan& plan, runtime::PrefillOptions::Kind kind);

// "; predicted 3.90" for the plan's method, nothing without a profile.
std::string predicted_beside(const runtime::plan::Plan& plan, std::size_t method);

}  // namespace hayloft::cli
