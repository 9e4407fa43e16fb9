#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/attention.h"
#include "examples/hayloft/options/chat.h"
#include "examples/hayloft/options/exact.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/ranks.h"
#include "examples/hayloft/options/rope.h"
#include "examples/hayloft/options/session.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/process/text_input.h"
#include "examples/hayloft/run_plan.h"
#include "gpu/make_backend.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "offload/text/visible.h"
#include "runtime/chat/load_chat_template.h"
#include "runtime/serve/http/server.h"
#include "runtime/serve/ranks/follow.h"
#include "runtime/serve/responses/response_store.h"

// hayloft serve: a model over HTTP, for clients of OpenAI's API.
namespace hayloft::cli {
namespace {

constexpr const char* serve_examples = R"(Examples:
  hayloft serve -m models/Llama-3.2-1B-Instruct --attn sparq
      chat at http://127.0.0.1:8080, and clients with base_url http://127.0.0.1:8080/v1
  hayloft serve -m smollm2.gguf --contexts books --port 9000
      the model "smollm2:moby" is the saved context books/moby.hay, asked)";

// The tail of a layer, some 600 KiB at blocks of 512 tokens, gets pages of its own and gives them back. Requests come
// and go in another order than they came, so that in the heap of the thread that decodes tails would leave holes: after
// minutes of many clients it held over twice what was in use.
void keep_heap_small() {
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

// Says whether a browser may send it as the origin of a page: "http://localhost:3000", of a file "null" or "file://".
bool is_origin(std::string_view text) {
  if (text == "null" || text == "file://") return true;
  const std::size_t scheme = text.find("://");
  if (scheme == std::string_view::npos) return false;
  const std::string_view host = text.substr(scheme + 3);
  return scheme > 0 && !host.empty() && host.find_first_of("/?#, ") == std::string_view::npos &&
         std::ranges::none_of(text, [](char c) { return c >= 'A' && c <= 'Z'; });
}

class ServeCommand : public Command {
 public:
  explicit ServeCommand(CLI::App& app) : app_(&app) {
    app.footer(serve_examples);
    engine_.session.chunk_tokens = 512;  // a prompt keeps the others waiting for one chunk
    sampling_.temperature = 1;           // as the API has it
    add_model_option(app, model_, "");
    add_rope_options(app, rope_);
    app.add_option("--contexts", contexts_, "Folder of saved contexts that may be asked, made and removed")
        ->type_name("DIR")
        ->take_last();
    app.add_option("--host", server_.host, "Address to listen at; 0.0.0.0 is every one of this machine")
        ->type_name("ADDRESS")
        ->take_last()
        ->capture_default_str();
    add_text(
        app, "--port", "PORT",
        [this](const std::string& text) {
          server_.port = static_cast<std::uint16_t>(read_int("--port", text, 0, 65535));
        },
        "Port to listen at; 0: one that is free [8080]");
    app.add_option("--api-key-file", key_file_, "File with the key that requests must bring [none]")
        ->type_name("FILE")
        ->take_last();
    app.add_option("--cors", server_.cors_origin, "Origin whose pages may call from a browser, or * [none]")
        ->type_name("ORIGIN")
        ->take_last();
    add_text(
        app, "--parallel", "N", [this](const std::string& text) { engine_.parallel = read_int("--parallel", text); },
        "Requests that are read and answered in turns [8]");
    add_text(
        app, "--queue", "N", [this](const std::string& text) { engine_.queue = read_int("--queue", text); },
        "Requests that may wait for their turn; more are refused [64]");
    add_text(
        app, "--save-prompts", "BYTES",
        [this](const std::string& text) { saved_prompts_ = text == "0" ? 0 : read_bytes("--save-prompts", text); },
        "Disk for long prompts, saved in --contexts as they are read; 0: none is [4GiB]");
    add_text(
        app, "--prompt-checkpoints", "N",
        [this](const std::string& text) { checkpoints_ = read_int("--prompt-checkpoints", text, 1, 64); },
        "Keep so many of a saved prompt's last checkpoints, for prompts that part from it [4 with recurrent layers, "
        "else 1]");
    add_text(
        app, "-c,--ctx-size", "TOKENS", [this](const std::string& text) { engine_.longest = context_length(text); },
        "Tokens of prompt and answer that a request may have [what memory holds]");
    app.add_flag("--keep-billing-header", keeps_billing_header_,
                 "Read the billing header that coding agents put before their system prompt, which changes each time");
    common(app, Section::model, {"--contexts"});
    common(app, Section::server, {"--host", "--port", "--api-key-file"});
    advanced(app, Section::server,
             {"--cors", "--parallel", "--queue", "--save-prompts", "--prompt-checkpoints", "--keep-billing-header"});
    common(app, Section::context, {"--ctx-size"});
    add_sampling_options(app, sampling_);
    add_attention_options(app, attention_, {"dense"});
    add_exact_options(app, exact_);
    add_prefill_options(app, engine_.session);
    add_store_options(app, engine_.session.cache.columns, engine_.session.cache.rows);
    add_weights_option(app, machine_);
    add_products_option(app, machine_);
    add_machine_options(app, machine_);
    add_device_cache_options(app, machine_);
    add_step_graphs_option(app, machine_);
  }

  void check() override {
    if (model_.empty()) fail("a model is needed: --model DIR or FILE.gguf");
    method_ = attention_.one_method("serve", engine_.session.cache.columns);
    engine_.drafts = exact_.drafts(*app_, method_);
    machine_.head = engine_.drafts && engine_.drafts->head;
    copies_ = !engine_.drafts && method_.name == "dense" && app_->count("--draft") == 0;
    engine_.session.cache.block_tokens = machine_.block_tokens;
    note_unused_prefill(*app_, {&engine_.session.prefill, 1});
    runtime::Sampler sampler(sampling_);  // names the option that is out of range
    const std::string& origin = server_.cors_origin;
    if (!origin.empty() && origin != "*" && !is_origin(origin)) {
      fail("--cors {}: no page has this origin; write it as browsers send it, like http://localhost:3000, or *",
           visible(origin, Lines::joined));
    }
    std::error_code error;
    if (!contexts_.empty() && !std::filesystem::is_directory(contexts_, error)) {
      fail("--contexts {}: is no folder; make it first", contexts_);
    }
  }

  void check_ranks() const override {
    refuse_over_ranks(*app_, {"--exact", "--save-prompts", "--prompt-checkpoints"});
    require_over_ranks(machine_, engine_.session, {&method_, 1});
  }

  void run() override {
    keep_heap_small();
    interrupt_first_rank_alone();
    StartFacts facts;
    prepare_together([&] { begin(facts); });
    join_ranks(facts, engine_.session);
    take_terminations_for_interrupts();
    server_.stopped_by_sigterm = !over_ranks();
    agree_on_rates({&method_, 1}, *environment_);
    hold_to_least_memory();
    const Environment& environment = *environment_;
    if (engine_.longest > 0) note_length(environment, {model_, engine_.session, {}, engine_.longest});
    divide_device(environment, {.model = model_,
                                .session = engine_.session,
                                .methods = {method_},
                                .tokens = expected_tokens(environment),
                                .sessions = engine_.parallel});
    const runtime::ModelSource source{*environment.model, *environment.tokenizer, model_};
    const runtime::serve::Contexts contexts(contexts_);
    require_drafts(engine_.drafts, *environment.backend, environment.model->config());
    if (copies_ && environment.backend->tokens_verified_at_once(1) > 1) {
      engine_.drafts.emplace();
      engine_.drafts_for_one = true;
    }
    engine_.method = runtime::make_method(method_, environment.model->config().head_dim);
    if (first_rank()) {
      answer_requests(source, contexts);
    } else {
      runtime::serve::follow(source, *environment.arena, contexts, engine_.session, engine_.method);
    }
    say_device_memory(*environment.backend);
  }

 private:
  // Finds what this machine has for the run.
  void begin(StartFacts& facts) {
    if (first_rank()) server_.api_key = read_key();
    environment_.emplace(machine_, model_, rope_);
    sampling_ = sampling_for(*app_, sampling_, model_, Recommended::rules, machine_.verbose);
    sampling_.rules.require_within(environment_->model->config().vocab_size);
    method_ = with_rates(method_, *environment_, machine_.profile);
    require_layers(method_);
    facts = {weights_digest(*environment_, model_), shared_options(*app_), ""};
    if (!contexts_.empty()) facts.options += " --contexts";  // a folder of any name
  }

  void require_layers(const runtime::MethodOptions& method) const {
    const runtime::ModelConfig& config = environment_->model->config();
    runtime::make_method(method, config.head_dim)->require_layers(config.global_layers());
  }

  // Requests are let in by the first rank, which so keeps to what the others have as well.
  void hold_to_least_memory() {
    const auto all = runtime::cluster::of_all(peers(), std::uint64_t{environment_->arena->budget_bytes()});
    const auto least = std::ranges::min_element(all);
    engine_.host_bytes = *least;
    if (*least >= all.front() / 10 * 9) return;  // what is free of it at the start differs a little
    note("note: rank {} has least memory for keys and values, {}, which requests are held to; the first has {}\n",
         least - all.begin(), format_bytes(*least), format_bytes(all.front()));
  }

  void answer_requests(const runtime::ModelSource& source, const runtime::serve::Contexts& contexts) {
    namespace serve = runtime::serve;
    const Environment& environment = *environment_;
    if (!contexts_.empty() && !over_ranks()) {
      engine_.saved.directory = std::filesystem::path(contexts_) / ".prompts";
      engine_.saved.most_bytes = saved_prompts_;
      engine_.saved.checkpoints = checkpoints_;
    }
    engine_.lost = end_ranks;
    std::string device_lost;  // written before the signal, read when the server has ended
    engine_.device_lost = [&](const std::string& problem) {
      device_lost = problem;
      ::kill(::getpid(), SIGINT);  // the server lets the answers out and ends
    };
    serve::Engine engine(source, *environment.arena, contexts, engine_);
    serve::ContextJobs context_jobs(source, *environment.arena, contexts, engine_.session,
                                    [&](const std::string& name) { engine.forget_context(name); });
    const std::optional<runtime::ChatTemplate> chat = runtime::load_chat_template(model_);
    serve::responses::ResponseStore responses;
    const serve::openai::Served served{served_name(),
                                       environment.model->config(),
                                       *environment.tokenizer,
                                       chat ? &*chat : nullptr,
                                       contexts,
                                       sampling_,
                                       128,
                                       longest_answer(environment),
                                       engine_.longest,
                                       &responses,
                                       !keeps_billing_header_};
    const serve::http::Routes routes(served, source, engine, context_jobs);
    serve::http::serve(routes, server_, [&](const std::string& host, std::uint16_t port) {
      check_interrupted();  // what came before the server had its own handlers
      if (!chat) note("note: the model has no chat template: /v1/completions works, /v1/chat/completions does not\n");
      if (over_ranks()) {
        note("{} ranks; kill -USR1 of mpirun, or kill -INT {} here, stops the server when its answers have ended\n",
             rank_count(), ::getpid());
      }
      note("serving {} at http://{}:{}/\n", visible(served.name, Lines::joined),
           host.find(':') == std::string::npos ? host : "[" + host + "]", port);
    });
    if (!device_lost.empty()) throw gpu::DeviceLost(device_lost);
  }

  // Called in the engine's thread.
  [[noreturn]] static void end_ranks(const std::string& problem) {
    write_error(fmt::format("hayloft: rank 0: {}\n", visible(problem, Lines::joined)));
    abort_ranks();
    std::abort();
  }

  // The last part of the path, without .gguf.
  std::string served_name() const {
    std::string name = model_name(model_);
    if (name.ends_with(".gguf")) name.resize(name.size() - std::string_view(".gguf").size());
    return name;
  }

  // Returns the length of an answer to a chat request that does not say: what the model was made for, which the engine
  // then holds to memory.
  std::int64_t longest_answer(const Environment& environment) const {
    constexpr std::int64_t most = 4096;
    const std::int64_t made_for = environment.model->config().max_positions;
    return std::min(most, made_for > 0 ? std::max<std::int64_t>(made_for / 4, 1) : most);
  }

  // Returns how long a request is taken to be where the device's memory is divided: as long as one may be, or as the
  // model was made for, within what memory holds.
  std::int64_t expected_tokens(const Environment& environment) const {
    const runtime::ModelConfig& config = environment.model->config();
    const std::int64_t held =
        runtime::plan::longest_context(config, engine_.session.cache, environment.arena->budget_bytes());
    const std::int64_t asked = engine_.longest > 0 ? engine_.longest : config.max_positions;
    return asked > 0 ? std::min(asked, held) : held;
  }

  std::string read_key() const {
    if (key_file_.empty()) return {};
    std::string key = read_text("--api-key-file", key_file_);
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
    if (key.empty()) fail("--api-key-file {}: has no key in it", key_file_);
    return key;
  }

  CLI::App* app_;
  std::optional<Environment> environment_;
  std::string model_;
  std::string contexts_;
  std::string key_file_;
  runtime::SamplerOptions sampling_;
  AttentionOptions attention_;
  ExactChoices exact_;
  bool copies_ = false;  // whether a lone answer of `dense` may be drafted by copies from its text
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
  std::uint64_t saved_prompts_ = std::uint64_t{4} << 30;
  int checkpoints_ = 0;
  bool keeps_billing_header_ = false;
  runtime::MethodOptions method_;
  runtime::serve::EngineOptions engine_;
  runtime::serve::http::ServerOptions server_;
};

}  // namespace

std::unique_ptr<Command> make_serve_command(CLI::App& app) {
  return std::make_unique<ServeCommand>(app);
}

}  // namespace hayloft::cli
