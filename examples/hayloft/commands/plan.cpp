#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/attention.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/ranks.h"
#include "examples/hayloft/options/rope.h"
#include "examples/hayloft/options/session.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/text_output.h"
#include "examples/hayloft/run_plan.h"
#include "gpu/make_backend.h"
#include "offload/error.h"
#include "offload/host/arena.h"
#include "offload/host/threads.h"
#include "offload/host/topology.h"
#include "offload/text/format.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/plan/expert_division.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/remedy.h"

// hayloft plan: what a run will take and how long a token, before anything is allocated.
namespace hayloft::cli {
namespace {

constexpr const char* plan_examples = R"(Examples:
  hayloft plan -m models/Llama-3.2-1B --ctx-size 256k,1M
  hayloft plan -m Qwen3.5-27B/config.json --weight-type IQ4_XS --gpu-memory 16GiB --ctx-size 256k
      of a model of which only its configuration is there
  hayloft plan --shape 32,32,8,128 --ctx-size 1M --attn dense,sparq:r=16:k=512 --host-memory 64GiB
  hayloft plan --shape 32,32,8,128 -c 128k --gpu-memory 16GiB --host-memory 60GiB
      on a machine that is not this one; --link-rate and --device-rate give it times
  hayloft link --profile here.json && hayloft plan -m DIR --machine here.json --json -
The exit status is 3 when a length does not fit.)";

constexpr int misfit_exit = 3;

class PlanCommand : public Command {
 public:
  explicit PlanCommand(CLI::App& app) : app_(app) {
    app.footer(plan_examples);
    add_model_option(app, model_, "");
    add_rope_options(app, rope_);
    add_text(
        app, "--shape", "LAYERS,HEADS,KV-HEADS,HEAD-DIM",
        [this](const std::string& text) {
          const runtime::plan::ShapeOptions given = read_shape(text);
          shape_.layers = given.layers;
          shape_.heads = given.heads;
          shape_.kv_heads = given.kv_heads;
          shape_.head_dim = given.head_dim;
        },
        "Shape of a model that is not there, instead of -m");
    add_size(app, "--hidden", shape_.hidden, "With --shape [heads times head-dim]");
    add_size(app, "--intermediate", shape_.intermediate, "With --shape [3.5 times hidden]");
    add_size(app, "--vocab", shape_.vocab, "With --shape [128256]");
    add_text(
        app, "--weight-type", "TYPE", [this](const std::string& text) { weight_type_ = read_type(text); },
        "With --shape, -m DIR/config.json or a model that is planned alone: what the matrices are, as GGUF names it: "
        "Q4_K ... [F16]");
    common(app, Section::model, {"--shape"});
    advanced(app, Section::model, {"--hidden", "--intermediate", "--vocab"});
    common(app, Section::model, {"--weight-type"});
    add_context_lengths_option(app, lengths_);
    add_attention_options(app, attention_, {"dense", "sparq", "topk", "window"});
    add_prefill_options(app, request_.session);
    add_store_options(app, request_.session.cache.columns, request_.session.cache.rows);
    add_weights_option(app, machine_);
    add_machine_options(app, machine_);
    add_device_cache_options(app, machine_);
    add_profile_option(app, machine_);
    add_text(
        app, "--card", "NAME|SMS,GHZ,GB/S,LINK",
        [this](const std::string& text) { request_.card = runtime::plan::parse_card(text); },
        "Predict the stages of a step on this GPU, as in rtx4060, or with so many multiprocessors, at so many GHz, "
        "with "
        "so many GB/s of memory and of the link, from counted instructions and bytes");
    app.add_option("--machine", machine_file_,
                   "Plan for the machine of this profile, which hayloft link wrote there, and not for this one")
        ->type_name("FILE")
        ->take_last();
    add_rate(app, "--link-rate", link_rate_, "Plan for a link to host memory of so many GB/s");
    add_rate(app, "--device-rate", device_rate_, "Plan for a device whose memory gives so many GB/s");
    common(app, Section::device, {"--machine", "--link-rate", "--device-rate"});
    advanced(app, Section::device, {"--card"});
    add_text(
        app, "--ranks", "N", [this](const std::string& text) { ranks_ = read_int("--ranks", text); },
        "Plan for each of N machines that hold the context together")
        ->default_str("1");
    add_text(
        app, "--network", "GBIT/S,US|FILE",
        [this](const std::string& text) { request_.network = runtime::plan::parse_network(text); },
        "With --ranks: what is between any two of them, its rate and the latency of a message in microseconds, or what "
        "mpirun hayloft link --json measured");
    advanced(app, Section::device, {"--ranks", "--network"});
    add_text(
        app, "--accepted", "SHARE",
        [this](const std::string& text) { request_.accepted = read_number("--accepted", text, 0, 1); },
        "Plan --exact, too, with copies from the text and with drafts by each --attn, of which this share is accepted");
    advanced(app, Section::attention, {"--accepted"});
    add_json_option(app, json_, "Write the plan as JSON");
  }

  void check() override {
    if (model_.empty() == (shape_.layers == 0)) fail("plan needs a model: either -m DIR or --shape");
    for (const char* option : {"--hidden", "--intermediate", "--vocab"}) {
      if (!model_.empty() && app_.count(option) > 0) fail("{} goes with --shape, and -m says it itself", option);
    }
    if (model_.empty() && rope_.any()) fail("{} goes with -m: a --shape has no RoPE", rope_.text());
    request_.methods = attention_.methods(request_.session.cache.columns);
    request_.experts = machine_.experts;
    request_.session.cache.block_tokens = machine_.block_tokens;
    note_unused_prefill(app_, {&request_.session.prefill, 1});
    if (ranks_ > most_ranks) fail("--ranks {}: at most {}", ranks_, most_ranks);
    request_.session.cache.shard.ranks = ranks_;
    if (request_.network && ranks_ == 1) fail("--network is between ranks; say how many by --ranks");
    if (ranks_ > 1 && request_.accepted) fail("--accepted: --exact is not over ranks; leave one of them out");
    if (ranks_ > 1) require_over_ranks(machine_, request_.session, request_.methods);
    if (weight_type_ && machine_.weights != runtime::WeightForm::stored) {
      fail("--weight-type and --weights both say what the matrices are; leave one of them out");
    }
    if (!machine_file_.empty() && !machine_.profile.empty()) {
      fail("--machine and --profile both name a profile; --machine takes memory and threads from it as well");
    }
    if (!machine_file_.empty() && app_.count("--threads") > 0) {
      fail("--threads: --machine takes threads from {}; leave one of them out", machine_file_);
    }
    take_rates();
    for (const char* option : {"--card", "--link-rate", "--device-rate"}) {
      if (app_.count(option) > 0) machine_.for_cuda.emplace_back(option);
    }
    const bool on_cpu = machine_.device == "cpu";
    note_unused_cuda(machine_, on_cpu);
    if (on_cpu) request_.card.reset();  // as that said
    if (!model_.empty()) return;
    request_.config = runtime::plan::config_of_shape(shape_);
    for (const runtime::MethodOptions& method : request_.methods) {
      runtime::make_method(method, request_.config.head_dim)->require_layers(request_.config.global_layers());
    }
  }

  void run() override {
    const TextOutput json(json_);
    json.check();
    if (request_.network && request_.network->within_machines) {
      note("note: --network was measured between ranks that share machines: of memory, and not of a network\n");
    }
    if (model_.empty() || configuration_alone()) {
      if (!model_.empty()) {
        request_.config = runtime::read_config(std::filesystem::path(model_).parent_path());
        runtime::set_rope(request_.config, rope_);
      }
      request_.weights = counted_weights();
      request_.head = weight_type_ ? runtime::head_sizes(request_.config, *weight_type_)
                                   : runtime::head_sizes(request_.config, gpu::DType::f16, machine_.weights);
      add_counted_weights();
    } else {
      const auto checkpoint = runtime::Checkpoint::open(model_);
      request_.config = checkpoint->config();
      runtime::set_rope(request_.config, rope_);
      if (weight_type_) fail("--weight-type: {} has weights of its own; leave it out", model_);
      request_.weights = runtime::weight_sizes(*checkpoint, machine_.weights);
      request_.head = runtime::head_sizes(*checkpoint, machine_.weights);
      add_weights([&](runtime::WeightForm form) { return runtime::weight_sizes(*checkpoint, form); });
      request_.tokenizer_file_bytes = runtime::tokenizer_bytes(model_);
    }
    request_.experts_held = experts_held(machine_, request_.config);
    note_no_experts(machine_, request_.config);
    std::optional<runtime::plan::MachineProfile> other;
    if (!machine_file_.empty()) other = runtime::plan::read_profile(machine_file_);
    describe_machine(other);
    const std::optional<runtime::plan::MachineProfile> profile = other ? of_device(other) : read_profile();
    request_.expert_rates = runtime::plan::expert_rates(profile ? &*profile : nullptr);
    for (runtime::MethodOptions& method : request_.methods) {
      method.rates = runtime::plan::machine_rates(profile, request_.device_budget > 0 ? "cuda" : "cpu",
                                                  request_.config.global_layers());
    }
    std::vector<runtime::plan::Plan> plans;
    for (const std::int64_t tokens : lengths_) {
      request_.tokens = tokens;
      plans.push_back(runtime::plan::make_plan(request_, profile ? &*profile : nullptr));
      runtime::plan::Plan& plan = plans.back();
      misfits_ = misfits_ || !plan.shortfall.empty();
      if (!plan.shortfall.empty()) plan.remedy = runtime::plan::remedy(request_, other_weights_);
      if (plans.size() == 1) {
        note_experts_unheld(request_.experts_held, request_.config,
                            plan.experts ? plan.experts->placement.place : runtime::ExpertPlace::device);
      }
      if (!json.to_stdout()) print((plans.size() > 1 ? "\n" : "") + runtime::plan::plan_table(plans.back()));
    }
    json.write(runtime::plan::plan_json(plans));
  }

  int exit_code() const override { return misfits_ ? misfit_exit : 0; }

 private:
  bool configuration_alone() const { return std::filesystem::path(model_).filename() == "config.json"; }

  // Counts the weights by the configuration, whatever is there.
  runtime::WeightSizes counted_weights() const {
    return weight_type_ ? runtime::weight_sizes(request_.config, *weight_type_)
                        : runtime::weight_sizes(request_.config, gpu::DType::f16, machine_.weights);
  }

  // Adds what else the matrices could be, for a remedy. Weights lose more than rows of as many bits: they are at work
  // in every layer and for every token.
  void add_weights(const std::function<runtime::WeightSizes(runtime::WeightForm)>& sizes) {
    other_weights_ = {{"--weights q8", sizes(runtime::WeightForm::q8), 32},
                      {"--weights q4", sizes(runtime::WeightForm::q4), 128}};
  }
  void add_counted_weights() {
    if (!weight_type_) {
      add_weights(
          [&](runtime::WeightForm form) { return runtime::weight_sizes(request_.config, gpu::DType::f16, form); });
      return;
    }
    using Type = runtime::gguf::TensorType;
    for (const auto& [name, type, cost] : {std::tuple("Q8_0", Type::q8_0, 32), std::tuple("Q6_K", Type::q6_k, 48),
                                           std::tuple("Q4_K", Type::q4_k, 128)}) {
      other_weights_.push_back(
          {fmt::format("--weight-type {}", name), runtime::weight_sizes(request_.config, type), cost});
    }
  }

  // A rate in GB/s, with or without the unit behind it.
  static void add_rate(CLI::App& app, const char* option, double& rate, const char* help) {
    const auto read = [option, &rate](std::string_view text) {
      constexpr std::string_view unit = "GB/s";
      if (text.ends_with(unit)) text.remove_suffix(unit.size());
      rate = read_number(option, std::string(text), 0.01, 1e6);
    };
    add_text(app, option, "GB/S", read, help);
  }

  // A card of its rates alone, or other rates of the given card.
  void take_rates() {
    if (link_rate_ == 0 && device_rate_ == 0) return;
    if (!request_.card && (link_rate_ == 0 || device_rate_ == 0)) {
      fail("--link-rate and --device-rate say together what a device gives; add the other one");
    }
    if (!request_.card) request_.card.emplace();
    if (link_rate_ > 0) request_.card->link_rate = link_rate_;
    if (device_rate_ > 0) request_.card->memory_rate = device_rate_;
  }

  // Memory and threads: of the profile's machine, or of this one. What --host-memory gives to keys and values need not
  // be here, and nobody knows then what else that machine has.
  void describe_machine(const std::optional<runtime::plan::MachineProfile>& other) {
    const offload::Threads threads(other ? 1 : thread_count(machine_));
    request_.threads = other ? other->threads : threads.count();
    request_.device_budget = other ? device_of(*other) : device_budget(threads);
    request_.device_cache = {machine_.cuda.column_cache_bytes, machine_.cuda.row_cache_bytes};
    request_.host_budget = machine_.host_memory;
    constexpr std::uint64_t anything = std::uint64_t{1} << 60;
    const std::uint64_t here = offload::Topology().available_bytes();
    request_.available_bytes = other ? other->origin.memory_bytes : here;
    if (machine_.host_memory > 0 && !other) request_.available_bytes = anything;
    if (request_.available_bytes == 0) {
      fail(
          "{}: does not say how much memory its machine has; measure it again with hayloft link, or give --profile and "
          "--host-memory",
          machine_file_);
    }
  }

  // Returns what is said of a device's memory: by --gpu-memory, else by a named card; 0: nothing.
  std::uint64_t said_of_device() const {
    if (machine_.cuda.memory_bytes > 0) return machine_.cuda.memory_bytes;
    return request_.card && request_.card->memory_bytes > 0 ? request_.card->memory_bytes - kept_by_others : 0;
  }

  std::uint64_t device_of(const runtime::plan::MachineProfile& other) const {
    if (machine_.device == "cpu") return 0;
    if (const std::uint64_t said = said_of_device(); said > 0) return said;
    if (other.device == "cuda" && other.origin.gpu_memory_bytes == 0) {
      fail("{}: does not say how much memory its device has; give --gpu-memory", machine_file_);
    }
    return other.origin.gpu_memory_bytes;
  }

  static runtime::gguf::TensorType read_type(const std::string& text) {
    for (const runtime::gguf::TypeTraits& type : runtime::gguf::supported_types()) {
      if (text == type.name) return type.type;
    }
    fail("--weight-type {}: must be one of {}", text, runtime::gguf::supported_type_names());
  }

  static void add_size(CLI::App& app, const std::string& option, std::int64_t& size, const std::string& help) {
    add_text(
        app, option, "N", [option, &size](const std::string& text) { size = read_int(option, text); }, help);
  }

  // Returns the budget of the device that is planned for, which need not be here when --gpu-memory says how much it
  // gives; 0: the CPU.
  std::uint64_t device_budget(const offload::Threads& threads) const {
    if (machine_.device == "cpu") return 0;
    if (const std::uint64_t said = said_of_device(); said > 0) return said;
    try {
      const gpu::DeviceMemory device = gpu::make_cuda_backend(threads, machine_.cuda)->memory();
      return device.budget_bytes + device.overhead_bytes;
    } catch (const gpu::NoDevice& none) {
      if (machine_.device != "auto") refuse_device(none);
      say_idle_gpu(none);
      return 0;
    } catch (const Error& error) {
      if (machine_.device != "auto") refuse_device(error);
      note("note: the CUDA device is not planned for: {}\n", error.what());
      return 0;
    }
  }

  [[noreturn]] static void refuse_device(const Error& error) {
    fail("{} (to plan for a device that is not here, say what it has by --gpu-memory)", error.what());
  }

  std::optional<runtime::plan::MachineProfile> read_profile() const {
    std::optional<runtime::plan::MachineProfile> profile = runtime::plan::find_profile(machine_.profile);
    if (!profile && request_.card) return profile;  // which gives times of its own
    if (!profile) {
      note("no machine profile at {}: no times; hayloft link measures one, and --card rtx4060 predicts a card's\n",
           runtime::plan::default_profile_path().string());
      return profile;
    }
    return of_device(trusted(std::move(profile), machine_.profile));
  }

  // With a word on what it has no times of.
  std::optional<runtime::plan::MachineProfile> of_device(std::optional<runtime::plan::MachineProfile> profile) const {
    if (profile && request_.session.cache.rows != offload::RowFormat::f16) {
      note(
          "a machine profile has rates of f16 rows: no times of methods over {} rows; hayloft bench --rows {} measures "
          "them\n",
          offload::name(request_.session.cache.rows), offload::name(request_.session.cache.rows));
    }
    const char* device = request_.device_budget > 0 ? "cuda" : "cpu";
    if (profile && profile->device != device) {
      note("the machine profile is of device {}, the plan of {}: no times\n", profile->device, device);
      profile.reset();
    }
    if (profile && profile->threads != request_.threads) {
      note(
          "note: the machine profile is of {0} threads and so are its times; the plan is of {1}: hayloft link -t {1} "
          "there measures them\n",
          profile->threads, request_.threads);
    }
    return profile;
  }

  static constexpr int most_ranks = 4096;
  static constexpr std::uint64_t kept_by_others = std::uint64_t{1} << 29;  // of a named card's memory

  const CLI::App& app_;
  std::string model_;
  std::string json_;
  int ranks_ = 1;
  runtime::plan::ShapeOptions shape_;
  std::optional<runtime::gguf::TensorType> weight_type_;
  std::vector<std::int64_t> lengths_{std::int64_t{1} << 20};
  AttentionOptions attention_;
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
  runtime::plan::PlanRequest request_;
  std::string machine_file_;
  double link_rate_ = 0;  // GB/s; 0: not given
  double device_rate_ = 0;
  std::vector<runtime::plan::OtherWeights> other_weights_;
  bool misfits_ = false;
};

}  // namespace

std::unique_ptr<Command> make_plan_command(CLI::App& app) {
  return std::make_unique<PlanCommand>(app);
}

}  // namespace hayloft::cli
