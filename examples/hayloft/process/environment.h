#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "examples/hayloft/options/machine.h"
#include "gpu/backend.h"
#include "gpu/device_options.h"
#include "gpu/make_backend.h"
#include "offload/host/arena.h"
#include "offload/host/threads.h"
#include "offload/host/topology.h"
#include "runtime/attention/method_options.h"
#include "runtime/decode/model.h"
#include "runtime/machine/profile.h"
#include "runtime/plan/device_cache.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::cli {

// The profile that `given` names; if none is given, the one that hayloft link keeps, where there is one that can be
// read. Throws Error on a given one that cannot.
std::optional<runtime::plan::MachineProfile> machine_profile(const std::string& given);

// The same profile, unless it is one that nobody has named and that another machine's processor was measured for. A
// line on standard error says so, and likewise what else there is to say of it: where it is of, that it is old.
std::optional<runtime::plan::MachineProfile> trusted(std::optional<runtime::plan::MachineProfile> profile,
                                                     const std::string& given);

// Everything that the machine options stand for, built in the order that later parts need earlier ones.
struct Environment {
  // Without a model: what `attend` needs.
  explicit Environment(const MachineOptions& options);
  // The memory for keys and values is counted after the weights have taken theirs. Throws Error.
  Environment(const MachineOptions& options, const std::filesystem::path& model_path,
              const runtime::RopeOverrides& rope = {});

  // Predicts times here: machine_profile() of --profile, as far as it is trusted(), read when first asked for.
  const std::optional<runtime::plan::MachineProfile>& profile() const;

  gpu::KvHost kv_host;   // as asked for
  bool verbose = false;  // likewise
  runtime::WeightForm weights = runtime::WeightForm::stored;
  runtime::ExpertPlace experts = runtime::ExpertPlace::automatic;  // as asked for
  runtime::ExpertsHeld experts_held;                               // likewise expected
  mutable bool experts_placed = false;                             // for what is to be held, once that was known
  gpu::LinkChoice link;                                            // as a CUDA device is told; never automatic
  runtime::plan::CacheBudget device_cache;                         // likewise
  // Prints at once what the backend had to say: that memory could not be pinned.
  std::shared_ptr<std::vector<std::string>> notes = std::make_shared<std::vector<std::string>>();
  offload::Topology topology;
  offload::Threads threads;
  std::unique_ptr<gpu::Backend> backend;
  std::unique_ptr<runtime::Tokenizer> tokenizer;
  std::unique_ptr<runtime::Model> model;
  std::unique_ptr<offload::Arena> arena;

 private:
  std::string profile_given_;
  mutable std::optional<std::optional<runtime::plan::MachineProfile>> profile_;
};

// The same options with what `auto` and --fidelity predict by: the profile that --profile names or hayloft link keeps,
// where it is of the environment's device. -v says which.
runtime::MethodOptions with_rates(runtime::MethodOptions method, const Environment& environment,
                                  const std::string& profile);

// Over ranks that have met: the rates of the first become those of all, so that `auto` chooses the same on each.
void agree_on_rates(std::span<runtime::MethodOptions> methods, const Environment& environment);

// Says in a line on standard error that an NVIDIA GPU is here which the CPU computes instead of, because there is no
// CUDA device for this build, and returns true; false when the system shows none.
bool say_idle_gpu(const gpu::NoDevice& why);

// Returns what --experts-held says of the experts of a model; nothing where it was not given. Throws Error.
runtime::ExpertsHeld experts_held(const MachineOptions& options, const runtime::ModelConfig& config);
// Says in a line on standard error that --experts was given for a model without experts, where it was.
void note_no_experts(const MachineOptions& options, const runtime::ModelConfig& config);
// Says in a line on standard error that --experts-held was given for nothing, where it was, and why.
void note_experts_unheld(const runtime::ExpertsHeld& held, const runtime::ModelConfig& config,
                         runtime::ExpertPlace place);

// Says in lines on standard error where experts are that lie in the machine's memory: a note where nobody asked for
// that, and more with -v.
void say_experts(const Environment& environment);

// Returns the most that has been used of the device's memory, as one line on standard error; nothing where there is no
// budget.
void say_device_memory(const gpu::Backend& backend);

// Tells what the model computes with from others, its RoPE and the form of its weights included; empty where there are
// no others to compare it with.
std::string weights_digest(const Environment& environment, const std::filesystem::path& model);

const char* name(gpu::Link link);  // as --link takes it

// The last part of a model directory's path.
std::string model_name(const std::filesystem::path& directory);

// Lists what --device can name, and what this machine has of it: one line each.
std::string list_devices();

}  // namespace hayloft::cli
