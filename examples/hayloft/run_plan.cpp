#include "examples/hayloft/run_plan.h"

#include <algorithm>
#include <utility>

#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/saved_context.h"
#include "index/scan/blas_places.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/plan/expert_division.h"

namespace hayloft::cli {

namespace {

// Rotations that a model has never seen make its answers worse, first slowly, then altogether.
void note_positions(const runtime::ModelConfig& config, std::int64_t tokens, const std::filesystem::path& model) {
  if (config.max_positions == 0 || tokens <= config.max_positions) return;
  if (config.dual_chunk_positions > 0) {
    note(
        "note: {} tokens: past {} positions {} was made for dual chunk attention, which hayloft does not have; answers "
        "get worse beyond them: shorten the text, or take another model\n",
        tokens, config.dual_chunk_positions, model.filename().string());
    return;
  }
  const std::string source = std::filesystem::is_directory(model)
                                 ? fmt::format("max_position_embeddings in {}", (model / "config.json").string())
                                 : model.string();
  note(
      "note: {} tokens are more than the {} positions that {}, with its RoPE scaling, says the model was made for; "
      "answers get worse beyond them: shorten the text, or take the RoPE scaling that the model's makers name for such "
      "lengths, as in --rope-scaling yarn --rope-scale {}\n",
      tokens, config.max_positions, source, (tokens + config.max_positions - 1) / config.max_positions);
}

runtime::plan::PlanRequest request_of(const Environment& environment, const PlannedRun& run) {
  runtime::plan::PlanRequest request;
  request.config = environment.model->config();
  request.weights = runtime::weight_sizes(*runtime::Checkpoint::open(run.model), environment.weights,
                                          environment.model->head() != nullptr);
  request.experts = environment.experts;
  request.experts_held = environment.experts_held;
  request.session = run.session;
  request.methods = run.methods;
  request.tokens = run.tokens;
  request.mapped_tokens = run.mapped_tokens;
  request.checkpoints = run.checkpoints;
  request.saves = run.saves;
  request.sessions = run.sessions;
  request.host_budget = environment.arena->budget_bytes();
  request.available_bytes = environment.topology.available_bytes() / static_cast<std::uint64_t>(ranks_on_machine()) +
                            environment.model->weight_bytes();
  request.threads = environment.threads.count();
  request.tokenizer_file_bytes = runtime::tokenizer_bytes(run.model);
  const gpu::DeviceMemory device = environment.backend->memory();
  if (device.budget_bytes > 0) {
    request.device_budget = device.budget_bytes + device.overhead_bytes;
    request.device_cache = environment.device_cache;
    request.available_bytes = environment.topology.available_bytes() + environment.model->host_expert_bytes();
  }
  return request;
}

// Divides the device's memory when a process first knows what it is to hold; what is read later finds it so.
void place_experts(const Environment& environment, const std::optional<runtime::plan::MachineProfile>& profile,
                   runtime::plan::PlanRequest& request) {
  if (!std::exchange(environment.experts_placed, true)) {
    request.expert_rates = runtime::plan::expert_rates(profile ? &*profile : nullptr);
    if (!over_ranks()) environment.model->place_experts(runtime::plan::placed_experts(request));
    say_experts(environment);
    note_experts_unheld(environment.experts_held, environment.model->config(),
                        environment.model->expert_placement().place);
  }
  request.placed_experts = environment.model->expert_placement();
}

}  // namespace

void add_saved(const Environment& environment, const offload::Snapshot& snapshot, PlannedRun& run) {
  const offload::StoreShape& shape = snapshot.description().shape;
  run.session.cache.block_tokens = shape.block_tokens;
  run.session.cache.columns = shape.columns;
  run.session.cache.rows = shape.rows;
  run.tokens += snapshot.token_count();
  if (shape.layers == 0 || copies_saved(environment, snapshot)) return;
  // As many whole blocks as there must be for this rank to have its own.
  const std::int64_t stored = snapshot.stored_tokens(0);
  const int B = shape.block_tokens;
  run.mapped_tokens = stored == 0 ? 0 : snapshot.part().whole(stored - B, B) + B;
}

runtime::plan::Plan announce_plan(const Environment& environment, const PlannedRun& run,
                                  const std::optional<runtime::plan::MachineProfile>& profile) {
  runtime::plan::PlanRequest request = request_of(environment, run);
  place_experts(environment, profile, request);
  // A profile knows nothing of the network between ranks.
  const bool applies =
      profile && !over_ranks() && profile->threads == request.threads && profile->device == environment.backend->name();
  const runtime::plan::Plan plan = runtime::plan::make_plan(request, applies ? &*profile : nullptr);
  if (!plan.shortfall.empty()) fail("{}", plan.shortfall);
  // Working memory that a limit of the process may refuse is taken before anything is read.
  const auto by_faiss = [](const runtime::MethodOptions& method) { return method.name == "ann" || method.faiss; };
  if (std::ranges::any_of(run.methods, by_faiss)) index::prepare_blas(environment.threads);
  note("{}\n", runtime::plan::plan_line(plan));
  note_positions(request.config, run.tokens, run.model);
  return plan;
}

void note_length(const Environment& environment, const PlannedRun& run) {
  const runtime::ModelConfig& config = environment.model->config();
  const std::uint64_t budget = environment.arena->budget_bytes();
  const std::int64_t longest = runtime::plan::longest_context(config, run.session.cache, budget);
  if (run.tokens <= longest) return note_positions(config, run.tokens, run.model);
  note(
      "note: --ctx-size {}: {} of host memory hold keys and values of {} tokens, and longer requests are refused; "
      "lower it, or raise --host-memory\n",
      run.tokens, format_bytes(budget), longest);
}

void divide_device(const Environment& environment, const PlannedRun& run) {
  if (environment.model->config().experts.count == 0) {
    return note_experts_unheld(environment.experts_held, environment.model->config(),
                               environment.model->expert_placement().place);
  }
  runtime::plan::PlanRequest request = request_of(environment, run);
  place_experts(environment, environment.profile(), request);
}

std::string predicted_reading(const runtime::plan::Plan& plan, runtime::PrefillOptions::Kind kind) {
  for (const runtime::plan::PlannedPrefill& prefill : plan.prefill) {
    if (prefill.options.kind == kind && prefill.seconds) return fmt::format("; predicted {:.1f} s", *prefill.seconds);
  }
  return "";
}

std::string predicted_beside(const runtime::plan::Plan& plan, std::size_t method) {
  const std::optional<runtime::plan::PlanTime>& ms = plan.methods.at(method).ms;
  return ms ? fmt::format("; predicted {:.2f}", ms->total()) : "";
}

}  // namespace hayloft::cli
