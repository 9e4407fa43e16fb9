#include <algorithm>
#include <cstdio>
#include <optional>

#include "examples/hayloft/bundled_model.h"
#include "examples/hayloft/command.h"
#include "examples/hayloft/options/attention.h"
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
#include "runtime/eval/json.h"
#include "runtime/eval/needle/needle.h"
#include "runtime/eval/needle/report.h"
#include "runtime/eval/reach.h"

// hayloft needle: the scaling run, method by context length by depth.
namespace hayloft::cli {
namespace {

constexpr const char* needle_examples = R"(Examples:
  hayloft needle
      the bundled model at 64k tokens, every method
  hayloft needle --ctx-size 64k,256k,1M --attn dense,sparq --json needle.json --plot needle.svg
      a scaling run with its table, JSON and heatmap
  hayloft needle --ctx-size 1M --attn sparq:r=8,sparq:r=16,topk:k=32 --haystack book.txt
      real text, and one method with different options)";

class NeedleCommand : public Command {
 public:
  explicit NeedleCommand(CLI::App& app) : app_(&app) {
    app.footer(needle_examples);
    options_.ctx_sizes = {64 * 1024};
    add_model_option(app, model_, "the bundled needle model");
    add_rope_options(app, rope_);
    app.add_option("--haystack", haystack_, "Text to hide needles in, a file or a folder [made by a grammar]")
        ->type_name("PATH")
        ->take_last();
    add_context_lengths_option(app, options_.ctx_sizes);
    add_text(
        app, "--depths", "N", [this](const std::string& text) { options_.depths = read_int("--depths", text); },
        "Needles per length, spread evenly from the beginning to the end")
        ->default_str("11");
    app.add_flag("--one-needle", options_.one_needle, "One haystack per needle, not one with all needles");
    add_seed(app, "-s,--seed", options_.seed, "Seed of keys, digits and text");
    add_attention_options(app, attention_, {"dense", "sparq", "topk", "window"});
    add_prefill_options(app, options_.session);
    add_store_options(app, options_.session.cache.columns, options_.session.cache.rows);
    machine_.block_tokens = 0;
    add_weights_option(app, machine_);
    add_machine_options(app, machine_);
    add_device_cache_options(app, machine_, DeviceCache::off);
    add_profile_option(app, machine_);
    add_json_option(app, json_, "Write every question as JSON, to a file as they are answered");
    app.add_option("--plot", plot_, "Draw a heatmap, as SVG")->type_name("FILE")->take_last();
    common(app, Section::text, {"--haystack"});
    common(app, Section::task, {"--depths", "--seed"});
    advanced(app, Section::task, {"--one-needle"});
    common(app, Section::output, {"--plot"});
  }

  void check() override {
    options_.methods = attention_.methods(options_.session.cache.columns);
    options_.haystack = haystack_;
    options_.session.cache.block_tokens = machine_.block_tokens;
    note_unused_prefill(*app_, {&options_.session.prefill, 1});
    if (!plot_.empty()) runtime::eval::check_picture(plot_);
  }

  void check_ranks() const override { require_over_ranks(machine_, options_.session, options_.methods); }

  void run() override {
    const TextOutput json(json_);
    if (json.to_stdout()) table_.use_standard_error();
    StartFacts facts;
    prepare_together([&] {
      json.check();
      begin(facts);
    });
    join_ranks(facts, options_.session);
    agree_on_rates(options_.methods, *environment_);
    prepare_together([&] { plan(); });
    const Environment& environment = *environment_;
    report_.device = environment.backend->name();
    report_.ranks = rank_count();
    report_.seed = options_.seed;
    report_.prefill = runtime::prefill_label(options_.session.prefill);
    report_.columns = offload::name(options_.session.cache.columns);
    report_.row_format = offload::name(options_.session.cache.rows);
    report_.weights = runtime::name(machine_.weights);
    const auto write_json = [&](bool complete) {
      report_.memory = environment.backend->memory();
      report_.complete = complete;
      json.write(runtime::eval::needle_json(report_));
    };
    runtime::eval::NeedleHooks hooks = progress_hooks();
    hooks.eval.row = [&](const runtime::eval::EvalRow& row) {
      report_.rows.push_back(row);
      table_.show(runtime::eval::needle_line(row) + "\n");
      if (json.wanted() && !json.to_stdout()) write_json(false);
      check_interrupted();
    };
    try {
      runtime::eval::run_needle(*environment.model, *environment.tokenizer, *environment.arena, options_, hooks);
    } catch (const Interrupted&) {
      progress_.reset();
      if (!report_.rows.empty()) table_.show("\n" + runtime::eval::needle_summary(report_));
      throw;
    }
    progress_.reset();
    table_.show("\n" + runtime::eval::needle_summary(report_));
    show_predictions();
    const TextOutput plot(plot_);
    if (plot.wanted()) plot.write(runtime::eval::render_heatmap(runtime::eval::needle_heatmap(report_)));
    write_json(true);
    say_device_memory(*environment.backend);
    table_.finish();
  }

 private:
  // Finds what this machine has for the run.
  void begin(StartFacts& facts) {
    TextOutput(plot_).check();
    if (!haystack_.empty() && !std::filesystem::exists(haystack_)) {
      fail("--haystack {}: there is no such file or folder", haystack_);
    }
    directory_ = model_or_bundled(model_);
    report_.model = model_name(directory_);
    environment_.emplace(machine_, directory_, rope_);
    for (runtime::MethodOptions& method : options_.methods) {
      method = with_rates(method, *environment_, machine_.profile);
    }
    environment_->model->expect_positions(*std::max_element(options_.ctx_sizes.begin(), options_.ctx_sizes.end()));
    if (!over_ranks()) return;
    facts = {weights_digest(*environment_, directory_), shared_options(*app_),
             haystack_.empty() ? "" : runtime::eval::file_digest("--haystack", haystack_)};
  }

  void plan() {
    for (const std::int64_t tokens : options_.ctx_sizes) {
      const runtime::SessionOptions session = runtime::eval::session_at(options_.session, tokens);
      plans_.push_back(
          announce_plan(*environment_, {directory_, session, options_.methods, tokens, 0}, environment_->profile()));
    }
  }

  runtime::eval::NeedleHooks progress_hooks() {
    runtime::eval::NeedleHooks hooks;
    hooks.context_started = [this](std::int64_t tokens) {
      check_interrupted();
      table_.show(fmt::format("context {}\n", format_count(tokens)));
      progress_.emplace(progress_sink(), "  prefill", "tokens", tokens);
    };
    hooks.eval.prefill = [this](std::int64_t done, std::int64_t) {
      check_interrupted();
      progress_->update(done);
    };
    hooks.eval.step = check_interrupted;
    hooks.eval.prepare = [this](std::int64_t done, std::int64_t total) {
      check_interrupted();
      if (done == 0 || !progress_) progress_.emplace(progress_sink(), "  index", "keys", total);
      progress_->update(done);
    };
    return hooks;
  }

  // Each plan beside the mean of what its questions took.
  void show_predictions() const {
    for (const runtime::plan::Plan& plan : plans_) {
      for (std::size_t i = 0; i < plan.methods.size(); ++i) {
        if (!plan.methods[i].ms) continue;
        double sum = 0;
        int count = 0;
        for (std::size_t row = 0; row < report_.rows.size(); ++row) {
          // Lengths come one after another, and methods within each, a question per depth.
          const runtime::eval::EvalRow& answered = report_.rows[row];
          if (answered.ctx_size != plan.tokens ||
              runtime::method_label(answered.attn) != runtime::method_label(options_.methods[i]))
            continue;
          sum += answered.ms_per_token;
          ++count;
        }
        if (count == 0) continue;
        note("{} {}: {:.2f} ms/token{}\n", format_count(plan.tokens), runtime::method_label(options_.methods[i]),
             sum / count, predicted_beside(plan, i));
      }
    }
  }

  const CLI::App* app_;
  std::string model_;
  std::string haystack_;
  std::string json_;
  std::string plot_;
  AttentionOptions attention_;
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
  runtime::eval::NeedleOptions options_;

  std::filesystem::path directory_;  // of the model
  std::optional<Environment> environment_;
  TableOutput table_;
  runtime::eval::NeedleReport report_;
  std::vector<runtime::plan::Plan> plans_;  // by context length
  std::optional<Progress> progress_;
};

}  // namespace

std::unique_ptr<Command> make_needle_command(CLI::App& app) {
  return std::make_unique<NeedleCommand>(app);
}

}  // namespace hayloft::cli
