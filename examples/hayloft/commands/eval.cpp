#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "examples/hayloft/audit_options.h"
#include "examples/hayloft/bundled_model.h"
#include "examples/hayloft/command.h"
#include "examples/hayloft/eval_outputs.h"
#include "examples/hayloft/eval_tasks.h"
#include "examples/hayloft/options/attention.h"
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
#include "examples/hayloft/process/text_output.h"
#include "examples/hayloft/run_plan.h"
#include "offload/error.h"
#include "offload/progress.h"
#include "offload/text/format.h"
#include "offload/text/list.h"
#include "runtime/checkpoint/fingerprint.h"
#include "runtime/eval/equal_bytes.h"
#include "runtime/eval/file.h"
#include "runtime/eval/reach.h"
#include "runtime/eval/report.h"

// hayloft eval: RULER's tasks, copying, perplexity and agreement with dense attention, method by length.
namespace hayloft::cli {
namespace {

constexpr const char* eval_examples = R"(Examples:
  hayloft eval -c 64k --attn dense,sparq,topk
      what the bundled model has learned: needles of six digits
  hayloft eval -m models/Llama-3.2-1B -c 4k,16k --tasks ruler --samples 50 --out ruler.jsonl
      RULER; the same command goes on where it was stopped
  hayloft eval -m models/Llama-3.2-1B -c 32k --text book.txt --attn dense,sparq,topk --plot p.svg
      copying, perplexity and agreement with dense attention on a text)";

constexpr std::int64_t long_prompt = 64 * 1024;  // from here on its reading is shown

class EvalCommand : public Command {
 public:
  explicit EvalCommand(CLI::App& app) : app_(&app) {
    app.footer(eval_examples);
    ctx_sizes_ = {4096};
    add_model_option(app, model_, "the bundled needle model");
    add_rope_options(app, rope_);
    add_context_lengths_option(app, ctx_sizes_);
    tasks_.add_options(app, options_);
    add_attention_options(app, attention_, {"dense", "sparq", "topk", "window"});
    add_exact_options(app, exact_);
    advanced(app, Section::attention, {"--exact"});
    add_text(
        app, "--equal-bytes", "BITS,...",
        [this](const std::string& text) {
          equal_bits_.clear();
          for (const std::string_view item : split_list(text)) {
            equal_bits_.push_back(read_int("--equal-bytes", std::string(item), 1, 4096));
          }
        },
        "Every method once for each of these, sized (components, page, lists or positions) to read so many bits of "
        "every position of a KV head besides the rows of --attn-k")
        ->take_last();
    advanced(app, Section::attention, {"--equal-bytes"});
    add_prefill_options(app, options_.session, &options_.prefills);
    add_text(
        app, "--fidelity", "SHARE",
        [this](const std::string& text) {
          fidelity_ = text == "none" ? 0 : read_share("--fidelity", text);
          if (*fidelity_ != 0) runtime::check_fidelity(*fidelity_);
        },
        fmt::format("Share of the attention mass that auto catches, as in generate [{:g}%]; none takes what is fastest",
                    runtime::default_fidelity * 100));
    advanced(app, Section::audit, {"--fidelity"});
    add_store_options(app, options_.session.cache.columns, options_.session.cache.rows);
    machine_.block_tokens = 0;
    add_weights_option(app, machine_);
    add_products_option(app, machine_);
    add_machine_options(app, machine_);
    add_device_cache_options(app, machine_, DeviceCache::off);
    add_profile_option(app, machine_);
    outputs_.add_options(app);
  }

  void check() override {
    options_.methods = attention_.methods(options_.session.cache.columns);
    options_.session.cache.block_tokens = machine_.block_tokens;
    check_exact();
    check_prefills();
    note_unused_prefill(*app_, options_.prefills);
    tasks_.check(model_.empty());
    std::sort(ctx_sizes_.begin(), ctx_sizes_.end());
    ctx_sizes_.erase(std::unique(ctx_sizes_.begin(), ctx_sizes_.end()), ctx_sizes_.end());
    if (!outputs_.stats.empty() && ctx_sizes_.size() > 1) {
      fail("--attention-stats {}: is of one context length, and --ctx-size has {}", outputs_.stats, ctx_sizes_.size());
    }
    const auto is_auto = [](const runtime::MethodOptions& method) { return method.name == "auto"; };
    if (fidelity_ && std::ranges::none_of(options_.methods, is_auto)) {
      note("note: --fidelity has no effect: only auto keeps it, and --attn has others\n");
    }
    if (!equal_bits_.empty() && std::ranges::all_of(options_.methods, runtime::eval::reads_every_key)) {
      note("note: --equal-bytes has no effect: all methods of --attn read every key\n");
    }
    if (!outputs_.plot.empty()) runtime::eval::check_picture(outputs_.plot);
    for (const char* option : {"--plot-by", "--plot-against"}) {
      if (outputs_.plot.empty() && app_->count(option) > 0) fail("{} goes with --plot", option);
    }
  }

  void check_ranks() const override {
    refuse_over_ranks(*app_, {"--attention-stats", "--exact"});
    for (const runtime::PrefillOptions& prefill : options_.prefills) {
      runtime::SessionOptions session = options_.session;
      session.prefill = prefill;
      require_over_ranks(machine_, session, options_.methods);
    }
  }

  void run() override {
    const TextOutput json(outputs_.json);
    if (json.to_stdout()) table_.use_standard_error();
    StartFacts facts;
    prepare_together([&] {
      json.check();
      begin(facts);
    });
    join_ranks(facts, options_.session);
    agree_on_rates(options_.methods, *environment_);
    const Environment& environment = *environment_;
    std::vector<std::unique_ptr<runtime::eval::EvalTask>> tasks;
    prepare_together([&] {
      tasks = tasks_.make(text_, *environment.tokenizer, ctx_sizes_, options_.samples);
      announce(environment, tasks);
    });
    try {
      for (const auto& task : tasks) run_task(environment, *task);
    } catch (const Interrupted&) {
      progress_.reset();
      if (!rows().empty()) table_.show("\n" + summary());
      throw;
    }
    table_.show("\n" + summary());
    if (stats_) write_attention_stats(*stats_, outputs_.stats);
    json.write(runtime::eval::eval_json(report()));
    if (!outputs_.plot.empty() && first_rank()) outputs_.write_plot(report());  // last, as there may be nothing to draw
    say_device_memory(*environment.backend);
    table_.finish();
  }

 private:
  // --exact is of dense attention's answers.
  void check_exact() {
    const auto is_dense = [](const runtime::MethodOptions& method) { return method.name == "dense"; };
    if (exact_.exact && std::ranges::none_of(options_.methods, is_dense)) {
      fail("--exact decodes what dense attention answers, and --attn has others; add dense");
    }
    if (exact_.exact && options_.agreement) {
      fail("--agreement follows dense attention a token at a time; leave it or --exact out");
    }
    if (exact_.exact && outputs_.plot_against == runtime::eval::EvalCost::compression) {
      fail("--plot-against compression: is of what dense attention reads by single steps; leave it or --exact out");
    }
    options_.drafts = exact_.drafts(*app_);
    machine_.head = options_.drafts && options_.drafts->head;
  }

  // Gives each way of reading what was said of all.
  void check_prefills() {
    if (options_.prefills.empty()) options_.prefills.emplace_back();
    std::set<std::string> labels;
    for (runtime::PrefillOptions& prefill : options_.prefills) {
      const runtime::PrefillOptions way = prefill;
      prefill = options_.session.prefill;
      prefill.kind = way.kind;
      prefill.sparse = way.sparse;
      if (!labels.insert(runtime::prefill_label(prefill)).second) {
        fail("--prefill: {} stands there twice", runtime::prefill_label(prefill));
      }
    }
    options_.session.prefill = options_.prefills.front();
  }

  // Finds what this machine has for the run.
  void begin(StartFacts& facts) {
    if (!outputs_.stats.empty()) {
      TextOutput(outputs_.stats).check();
      options_.observer = stats_ = std::make_shared<runtime::AttentionStats>();
    }
    TextOutput(outputs_.plot).check();
    directory_ = model_or_bundled(model_);
    text_ = tasks_.read_text();
    tasks_.use_model(directory_);
    environment_.emplace(machine_, directory_, rope_);
    require_drafts(options_.drafts, *environment_->backend, environment_->model->config());
    for (runtime::MethodOptions& method : options_.methods) {
      method = with_rates(method, *environment_, machine_.profile);
    }
    if (std::ranges::any_of(options_.methods, [](const auto& method) { return method.name == "auto"; })) {
      options_.auto_fidelity = fidelity_.value_or(runtime::default_fidelity);
    }
    if (over_ranks()) measure_nothing();
    report_.recipe = recipe(*environment_, directory_);
    report_.effective_share = outputs_.effective_percent / 100;
    if (!outputs_.out.empty() && first_rank()) file_.emplace(outputs_.out, report_.recipe);
    tasks_.say_what_the_bundled_model_cannot();
    tasks_.note_unread(*app_);
    const runtime::eval::EvalRecipe& read = report_.recipe;
    facts = {weights_digest(*environment_, directory_), shared_options(*app_),
             fmt::format("{} {} {} {} {} {} {}", read.haystack, read.squad, read.hotpotqa, read.triviaqa,
                         read.cnn_dailymail, read.text, fmt::join(read.prepared, " ")),
             read.chat_template};
    if (!outputs_.out.empty()) facts.options += " --out";  // rows are asked for in a file of any name
  }

  // Leaves out what is measured by all keys.
  void measure_nothing() {
    options_.auto_fidelity = 0;
    if (options_.fidelity_steps == 0) return;
    options_.fidelity_steps = 0;
    note("note: no recall, mass and error over ranks, of which none has all keys to measure them by\n");
  }

  runtime::eval::EvalRecipe recipe(const Environment& environment, const std::filesystem::path& directory) const {
    runtime::eval::EvalRecipe recipe;
    recipe.version = HAYLOFT_VERSION;
    recipe.model = model_name(directory);
    recipe.fingerprint = fmt::format(
        "{:02x}", fmt::join(runtime::fingerprint(directory, environment.model->config().rope_overrides), ""));
    recipe.device = environment.backend->name();
    recipe.threads = environment.threads.count();
    recipe.ranks = rank_count();
    tasks_.enter(recipe, options_.samples);
    for (const runtime::PrefillOptions& prefill : options_.prefills) {
      recipe.prefill += (recipe.prefill.empty() ? "" : ", ") + runtime::prefill_label(prefill);
    }
    recipe.weights = runtime::name(environment.weights);
    recipe.products = environment.backend->products();
    if (options_.drafts) recipe.drafts = fmt::format("{} at most {}", exact_.draft, options_.drafts->most);
    recipe.chunk_tokens = options_.session.chunk_tokens;
    recipe.block_tokens = options_.session.cache.block_tokens;
    recipe.columns = offload::name(options_.session.cache.columns);
    recipe.rows = offload::name(options_.session.cache.rows);
    recipe.agreement = options_.agreement;
    recipe.fidelity = options_.fidelity_steps > 0;
    recipe.auto_fidelity = options_.auto_fidelity;
    return recipe;
  }

  void announce(const Environment& environment,
                const std::vector<std::unique_ptr<runtime::eval::EvalTask>>& tasks) const {
    const std::optional<runtime::plan::MachineProfile> profile = environment.profile();
    std::set<std::int64_t> lengths;
    std::int64_t longest = 0;
    for (const auto& task : tasks) {
      lengths.insert(task->ctx_size());
      longest = std::max(longest, task->positions(options_.samples));
    }
    if (longest > 0) environment.model->expect_positions(longest);
    for (const std::int64_t length : lengths) {
      const runtime::SessionOptions session = runtime::eval::session_at(options_.session, length);
      announce_plan(environment, {directory_, session, methods_at(environment, length, /*say=*/true), length, 0},
                    profile);
    }
  }

  // Returns the methods asked for, or what --equal-bytes makes of them; `say`: also what it cannot make.
  std::vector<runtime::MethodOptions> methods_at(const Environment& environment, std::int64_t length, bool say) const {
    if (equal_bits_.empty()) return options_.methods;
    const runtime::ModelConfig& config = environment.model->config();
    const runtime::eval::EqualBytes equal = runtime::eval::at_equal_bytes(
        options_.methods, equal_bits_,
        {length, config.head_dim, config.query_heads / config.kv_heads, options_.session.cache.columns});
    for (const std::string& line : equal.left_out) {
      if (say) note("note: left out at {}: {}\n", format_count(length), line);
    }
    return equal.methods;
  }

  void run_task(const Environment& environment, runtime::eval::EvalTask& task) {
    const std::string what = fmt::format("{} at {}", task.name(), format_count(task.ctx_size()));
    const int samples = std::min(options_.samples, task.samples());
    runtime::eval::EvalHooks hooks;
    hooks.done = [&](const runtime::eval::EvalTask&, int sample, const std::string& prefill,
                     const runtime::MethodOptions& attn) { return in_file(task, sample, prefill, attn); };
    bool said = false;
    hooks.sample_started = [&](const runtime::eval::EvalTask&, int sample, std::int64_t prompt_tokens) {
      check_interrupted();
      if (prompt_tokens > task.ctx_size() && !std::exchange(said, true)) {
        note("note: {}: prompts are longer than that in tokens of this model, the first of {} tokens\n", what,
             prompt_tokens);
      }
      reading_ = prompt_tokens >= long_prompt;
      if (reading_) {
        progress_.emplace(progress_sink(), fmt::format("{}, sample {}, prefill", what, sample), "tokens",
                          prompt_tokens);
      } else if (!progress_) {
        progress_.emplace(progress_sink(), what, "samples", samples, sample);
      } else {
        progress_->update(sample);
      }
    };
    hooks.prefill = [&](std::int64_t done, std::int64_t) {
      check_interrupted();
      if (reading_) progress_->update(done);
    };
    hooks.prepare = [](std::int64_t, std::int64_t) { check_interrupted(); };
    hooks.step = check_interrupted;
    hooks.row = [&](const runtime::eval::EvalRow& row) {
      if (file_) {
        file_->add(row);
      } else {
        report_.rows.push_back(row);
      }
      if (machine_.verbose) table_.show(runtime::eval::eval_line(row) + "\n");
    };
    runtime::eval::EvalOptions options = options_;
    options.methods = methods_at(environment, task.ctx_size(), /*say=*/false);
    runtime::eval::run_eval(*environment.model, *environment.tokenizer, *environment.arena, task, options, hooks);
    progress_.reset();
  }

  // Over ranks: in that of the first.
  bool in_file(const runtime::eval::EvalTask& task, int sample, const std::string& prefill,
               const runtime::MethodOptions& attn) const {
    if (outputs_.out.empty()) return false;
    std::byte there{file_ && file_->has(task.name(), task.ctx_size(), sample, prefill, attn)};
    peers().broadcast(runtime::cluster::Traffic::start, {&there, 1});
    return there != std::byte{0};
  }

  const std::vector<runtime::eval::EvalRow>& rows() const { return file_ ? file_->rows() : report_.rows; }

  // Reports all rows of the file, where there is one.
  runtime::eval::EvalReport report() const { return {report_.recipe, rows(), report_.effective_share}; }
  std::string summary() const { return runtime::eval::eval_summary(report(), outputs_.format); }

  const CLI::App* app_;
  std::string model_;
  EvalOutputs outputs_;
  std::shared_ptr<runtime::AttentionStats> stats_;
  EvalTasks tasks_;
  std::vector<std::int64_t> ctx_sizes_;
  AttentionOptions attention_;
  ExactChoices exact_;
  std::vector<int> equal_bits_;  // of --equal-bytes
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
  runtime::eval::EvalOptions options_;
  std::optional<double> fidelity_;  // that --fidelity says; 0: none

  std::filesystem::path directory_;  // of the model
  std::string text_;                 // of --text
  std::optional<Environment> environment_;
  TableOutput table_;
  std::optional<runtime::eval::EvalFile> file_;
  runtime::eval::EvalReport report_;
  std::optional<Progress> progress_;
  bool reading_ = false;  // progress_ is that of a prefill
};

}  // namespace

std::unique_ptr<Command> make_eval_command(CLI::App& app) {
  return std::make_unique<EvalCommand>(app);
}

}  // namespace hayloft::cli
