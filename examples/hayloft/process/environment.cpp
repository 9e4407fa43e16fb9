#include "examples/hayloft/process/environment.h"

#include <algorithm>

#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "gpu/make_backend.h"
#include "gpu/nvidia.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/checkpoint/fingerprint.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/plan/experts_held.h"
#include "runtime/tokenizer/config_notes.h"

namespace hayloft::cli {
namespace {

gpu::LinkChoice chosen_link(const MachineOptions& options) {
  if (options.cuda.link != gpu::LinkChoice()) {
    const bool all_sm = options.cuda.link == gpu::LinkChoice(gpu::Link::sm);
    if (!all_sm && options.cuda.column_cache_bytes > 0 && options.device != "cpu") {
      note("note: --link: columns that the copy engine moves are not kept on the device; --link sm keeps them\n");
    }
    return options.cuda.link;
  }
  if (options.cuda.column_cache_bytes > 0) return gpu::Link::sm;  // which alone keeps what it reads
  const std::optional<runtime::plan::MachineProfile> profile = machine_profile(options.profile);
  const auto other = [&] {  // which a command that predicts by it says
    return options.profile.empty() &&
           runtime::plan::doubt(profile->origin, runtime::plan::origin_here(offload::Topology())).other_machine;
  };
  return profile && !other() && profile->device == "cuda" ? profile->best_link() : gpu::LinkChoice(gpu::Link::sm);
}

// The devices of a machine are dealt out to its ranks in turn, unless --device names one.
void choose_device(const MachineOptions& options, gpu::CudaOptions& cuda) {
  const int devices = options.one_device ? 1 : std::max(1, gpu::cuda_devices());
  const int turn = rank_on_machine() % devices;
  if (!options.one_device) cuda.device = turn;
  cuda.sharers = (ranks_on_machine() - turn + devices - 1) / devices;
  if (cuda.sharers < 2) return;
  note("note: {} ranks share a GPU, of which each may take {}\n", cuda.sharers,
       cuda.memory_bytes == 0 ? "an equal part" : "--gpu-memory " + format_bytes(cuda.memory_bytes));
}

std::unique_ptr<gpu::Backend> make_backend(const MachineOptions& options, const offload::Threads& threads,
                                           gpu::LinkChoice link,
                                           const std::shared_ptr<std::vector<std::string>>& notes) {
  if (options.device == "cpu" || (over_ranks() && options.device != "cuda")) {
    return gpu::make_cpu_backend(threads, options.products);
  }
  if (options.products != gpu::Products::exact && (options.device == "cuda" || gpu::cuda_devices() > 0)) {
    fail("--products {}: the CPU alone multiplies so; use --device cpu with it", gpu::name(options.products));
  }
  gpu::CudaOptions cuda = options.cuda;
  choose_device(options, cuda);
  cuda.link = link;
  if (options.cuda.link == gpu::Link::automatic) cuda.least_copy_bytes = gpu::worthwhile_copy_bytes;
  cuda.on_warning = [notes](const std::string& what) {
    note("note: {}\n", what);
    notes->push_back(what);
  };
  if (options.device == "cuda") return gpu::make_cuda_backend(threads, cuda);
  try {
    return gpu::make_cuda_backend(threads, cuda);
  } catch (const gpu::NoDevice& none) {
    if (!say_idle_gpu(none) && options.verbose) note("no CUDA device is used: {}\n", none.what());
  } catch (const Error& error) {
    // There is one. Who has said how to use it wants to know; anyone else is served by the CPU meanwhile.
    if (cuda.memory_bytes != 0) throw;
    note("note: the CUDA device is not used: {}\n", error.what());
  }
  return gpu::make_cpu_backend(threads, options.products);
}

// Divides what the arena would take of a machine alone, for each of the ranks there.
std::uint64_t share_of_machine(const offload::Topology& topology) {
  return topology.available_bytes() / 10 * 9 / static_cast<std::uint64_t>(ranks_on_machine());
}

// Memory that the device reads in place is pinned as the arena commits it.
offload::ArenaOptions arena_options(const MachineOptions& options, gpu::Backend& backend) {
  offload::ArenaOptions arena;
  arena.budget_bytes = options.host_memory;
  if (arena.budget_bytes == 0 && ranks_on_machine() > 1) arena.budget_bytes = share_of_machine(offload::Topology());
  arena.listener = backend.pinning();
  return arena;
}

}  // namespace

std::optional<runtime::plan::MachineProfile> machine_profile(const std::string& given) {
  if (!given.empty()) return runtime::plan::find_profile(given);
  try {
    return runtime::plan::find_profile();
  } catch (const Error&) {  // nothing asked for it; hayloft plan says what is wrong with it
    return std::nullopt;
  }
}

std::optional<runtime::plan::MachineProfile> trusted(std::optional<runtime::plan::MachineProfile> profile,
                                                     const std::string& given) {
  if (!profile) return profile;
  const runtime::plan::ProfileDoubt found =
      runtime::plan::doubt(profile->origin, runtime::plan::origin_here(offload::Topology(), HAYLOFT_VERSION));
  if (found.what.empty()) return profile;
  const std::string path = given.empty() ? runtime::plan::default_profile_path().string() : given;
  const bool refused = found.other_machine && given.empty();
  note("note: the machine profile {} {}{}\n", shown(path), found.what,
       refused ? ": not used; hayloft link measures this one" : "; hayloft link measures anew");
  if (refused) profile.reset();
  return profile;
}

const std::optional<runtime::plan::MachineProfile>& Environment::profile() const {
  if (!profile_) profile_ = trusted(machine_profile(profile_given_), profile_given_);
  return *profile_;
}

Environment::Environment(const MachineOptions& options)
    : kv_host(options.cuda.kv_host),
      verbose(options.verbose),
      weights(options.weights),
      experts(options.experts),
      link(chosen_link(options)),
      device_cache{options.cuda.column_cache_bytes, options.cuda.row_cache_bytes},
      threads(thread_count(options)),
      backend(make_backend(options, threads, link, notes)),
      arena(std::make_unique<offload::Arena>(topology, arena_options(options, *backend))),
      profile_given_(options.profile) {
  note_unused_cuda(options, std::string_view(backend->name()) == "cpu");
  if (!options.verbose) return;
  note("machine: {}\ndevice: {}\nhost memory for keys and values: {}\n", topology.describe(), backend->description(),
       format_bytes(arena->budget_bytes()));
}

Environment::Environment(const MachineOptions& options, const std::filesystem::path& model_path,
                         const runtime::RopeOverrides& rope)
    : Environment(options) {
  tokenizer = std::make_unique<runtime::Tokenizer>(runtime::load_tokenizer(model_path));
  model = std::make_unique<runtime::Model>(model_path, *backend, options.weights, rope, options.experts, options.head);
  experts_held = cli::experts_held(options, model->config());
  arena = std::make_unique<offload::Arena>(topology, arena_options(options, *backend));
  note_no_experts(options, model->config());
  for (const std::string& line : model->notes()) note("note: {}\n", line);
  if (std::filesystem::is_directory(model_path)) {
    for (const std::string& line : runtime::tokenizer_config_notes(model_path, *tokenizer)) note("note: {}\n", line);
  }
  if (!options.verbose) return;
  for (const std::string& line : model->skipped()) note("{}\n", line);
  const runtime::ModelConfig& config = model->config();
  const int recurrent = config.count(runtime::LayerKind::recurrent);
  const runtime::Experts& experts = config.experts;
  note("model: {}, {} layers ({} global{}), {} query heads, {} KV heads of {}{}, weights {}{}\n", config.architecture,
       config.layers, config.global_layers(), recurrent > 0 ? fmt::format(", {} recurrent", recurrent) : "",
       config.query_heads, config.kv_heads, config.head_dim,
       experts.count > 0 ? fmt::format(", {} of {} experts", experts.used, experts.count) : "",
       format_bytes(model->weight_bytes()), model->head() ? ", with the head that predicts further tokens" : "");
}

runtime::ExpertsHeld experts_held(const MachineOptions& options, const runtime::ModelConfig& config) {
  if (options.experts_held.empty()) return {};
  return runtime::plan::read_experts_held(options.experts_held, config.experts.count);
}

void note_no_experts(const MachineOptions& options, const runtime::ModelConfig& config) {
  if (options.device == "cpu" || options.experts == runtime::ExpertPlace::automatic || config.experts.count > 0) return;
  note("note: --experts has no effect: the model has no experts\n");
}

void note_experts_unheld(const runtime::ExpertsHeld& held, const runtime::ModelConfig& config,
                         runtime::ExpertPlace place) {
  if (held.experts == 0 || place == runtime::ExpertPlace::link) return;
  note("note: --experts-held has no effect: {}\n",
       config.experts.count == 0 ? "the model has no experts" : "no experts come over a link by this plan");
}

void say_experts(const Environment& environment) {
  const runtime::ExpertPlacement& placement = environment.model->expert_placement();
  const std::string bytes = format_bytes(environment.model->host_expert_bytes());
  if (environment.model->host_expert_bytes() == 0) return;
  if (environment.experts == runtime::ExpertPlace::automatic) {
    note(
        "note: {} of experts stay in the machine's memory, as by --experts {}{}: the device has no room for them "
        "beside a context; --experts device insists\n",
        bytes, runtime::name(placement.place), placement.prompts_over_link ? ", for prompts link" : "");
  }
  if (!environment.verbose) return;
  note("experts: {} {}\n", bytes,
       placement.place == runtime::ExpertPlace::near
           ? "near the processor"
           : fmt::format("over the link, of which the device keeps {} in each layer", placement.kept));
}

runtime::MethodOptions with_rates(runtime::MethodOptions method, const Environment& environment,
                                  const std::string& profile) {
  const std::optional<runtime::plan::MachineProfile>& measured = environment.profile();
  std::string source = profile;
  if (measured && profile.empty()) source = runtime::plan::default_profile_path().string();
  method.rates = runtime::plan::machine_rates(measured, environment.backend->name(),
                                              environment.model->config().global_layers(), source);
  if (environment.verbose && method.name == "auto") {
    note("attention: auto, predicted by {}{}\n", method.rates->source,
         measured ? "" : "; hayloft link measures this machine's");
  }
  return method;
}

void agree_on_rates(std::span<runtime::MethodOptions> methods, const Environment& environment) {
  const auto chooses = [](const runtime::MethodOptions& method) { return method.name == "auto"; };
  runtime::cluster::Communicator* const all = ranks();
  if (all == nullptr || std::ranges::none_of(methods, chooses)) return;
  std::string profile;  // of the first; empty: none
  if (first_rank() && environment.profile()) profile = runtime::plan::profile_json(*environment.profile());
  std::uint64_t size = profile.size();
  all->broadcast(runtime::cluster::Traffic::start, std::as_writable_bytes(std::span(&size, 1)));
  profile.resize(size);
  all->broadcast(runtime::cluster::Traffic::start, std::as_writable_bytes(std::span(profile)));
  std::optional<runtime::plan::MachineProfile> measured;
  if (size > 0) measured = runtime::plan::parse_profile(profile);
  const auto rates = runtime::plan::machine_rates(measured, environment.backend->name(),
                                                  environment.model->config().global_layers(), "the profile of rank 0");
  for (runtime::MethodOptions& method : methods) method.rates = rates;
}

std::string weights_digest(const Environment& environment, const std::filesystem::path& model) {
  if (!over_ranks()) return {};
  const runtime::ExpertPlacement experts = environment.model->expert_placement();
  const runtime::Fingerprint print = runtime::fingerprint(model, environment.model->run_options());
  // Which tokens end a text may stand beside the model, in its generation_config.json.
  return fmt::format("{:02x} {} ends {}{}", fmt::join(print, ""), runtime::name(environment.weights),
                     fmt::join(environment.model->config().eos_tokens, ","),
                     experts.place == runtime::ExpertPlace::device
                         ? ""
                         : fmt::format(" experts {}{}", runtime::name(experts.place),
                                       experts.prompts_over_link ? ", of prompts over the link" : ""));
}

bool say_idle_gpu(const gpu::NoDevice& why) {
  const std::string gpu = gpu::nvidia_gpu();
  if (gpu.empty()) return false;
  note("note: an NVIDIA GPU is here ({}), but the CPU computes: {}\n", shown(gpu), why.what());
  return true;
}

void say_device_memory(const gpu::Backend& backend) {
  const gpu::DeviceMemory memory = backend.memory();
  if (memory.budget_bytes == 0) return;
  note("device memory: {} at most, {} as the driver counts, of {}, CUDA itself apart\n",
       format_bytes(memory.peak_bytes), format_bytes(memory.driver_peak_bytes), format_bytes(memory.budget_bytes));
}

const char* name(gpu::Link link) {
  switch (link) {
    case gpu::Link::sm:
      return "sm";
    case gpu::Link::copy:
      return "copy";
    case gpu::Link::both:
      return "both";
    case gpu::Link::automatic:
      break;
  }
  return "auto";
}

std::string model_name(const std::filesystem::path& directory) {
  const std::filesystem::path path = std::filesystem::absolute(directory).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::string list_devices() {
  const offload::Threads threads;
  std::string text =
      fmt::format("cpu   {}; {} of the memory can be taken\n", gpu::make_cpu_backend(threads)->description(),
                  format_bytes(offload::Topology().available_bytes()));
  const int devices = gpu::cuda_devices();
  for (int device = 0; device < std::max(1, devices); ++device) {
    text += devices > 1 ? fmt::format("cuda:{}  ", device) : "cuda  ";
    try {
      gpu::CudaOptions options;
      options.device = device;
      text += gpu::make_cuda_backend(threads, options)->description() + "\n";
    } catch (const gpu::NoDevice& none) {
      text += fmt::format("none: {}\n", none.what());
      say_idle_gpu(none);
    } catch (const Error& error) {
      text += fmt::format("none: {}\n", error.what());
    }
  }
  return text;
}

}  // namespace hayloft::cli
