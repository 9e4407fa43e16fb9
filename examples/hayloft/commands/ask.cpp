#include <algorithm>
#include <optional>

#include "examples/hayloft/audit_options.h"
#include "examples/hayloft/command.h"
#include "examples/hayloft/decoding.h"
#include "examples/hayloft/options/attention.h"
#include "examples/hayloft/options/chat.h"
#include "examples/hayloft/options/exact.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/kept.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/ranks.h"
#include "examples/hayloft/options/rope.h"
#include "examples/hayloft/options/session.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/process/shared_input.h"
#include "examples/hayloft/process/text_input.h"
#include "examples/hayloft/quotes.h"
#include "examples/hayloft/reach.h"
#include "examples/hayloft/run_plan.h"
#include "examples/hayloft/saved_context.h"
#include "offload/error.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/chat/calls/answer_form.h"
#include "runtime/chat/load_chat_template.h"
#include "runtime/chat/special_guard.h"
#include "runtime/context/ingest.h"
#include "runtime/tokenizer/end_of_turn.h"

// hayloft ask: questions to a saved context, each in a session of its own.
namespace hayloft::cli {
namespace {

constexpr const char* ask_examples = R"(Examples:
  hayloft ask book.hay -p "Who is the captain?" -p "What does he fear?"
      two questions, neither of which sees the other
  hayloft ask book.hay --attn sparq --attn-k 512 < questions.txt
      one question a line
  hayloft ask book.hay -p "Who is the captain?" --quotes --plot map.svg
      with a map of the book, and the places that the answer attended to
  hayloft ask book.hay
      on a terminal: type questions, end with Ctrl-D)";

// The place where a text stands that the question goes into.
constexpr const char* slot = "{}";

class AskCommand : public Command {
 public:
  explicit AskCommand(CLI::App& app) : app_(&app) {
    app.footer(ask_examples);
    add_context_argument(app, context_, "Saved context, made by hayloft ingest");
    add_model_option(app, model_, "where it was when the context was made");
    add_rope_options(app, rope_);
    app.add_option("-p,--prompt", questions_, "A question; may be repeated [lines of standard input]")
        ->type_name("TEXT");
    app.add_option("--template", template_,
                   "Text put behind the context; {} stands for the question, \\n for a new line [the model's chat "
                   "template; without one \\n{}]")
        ->type_name("TEXT")
        ->take_last();
    common(app, Section::text, {"--prompt", "--template"});
    add_predict_option(app, predict_);
    add_answers_option(app, answers_);
    add_sampling_options(app, sampling_);
    add_attention_options(app, attention_, {"auto"});
    add_exact_options(app, exact_);
    add_audit_options(app, audit_);
    add_weights_option(app, machine_);
    add_products_option(app, machine_);
    add_machine_options(app, machine_);
    add_device_cache_options(app, machine_);
    add_step_graphs_option(app, machine_);
    add_profile_option(app, machine_);
    add_statement_option(app, audit_);
    add_quote_options(app, quote_choices_);
  }

  void check() override {
    method_ = attention_.one_method("ask");
    drafts_ = exact_.drafts(*app_, method_);
    machine_.head = drafts_ && drafts_->head;
    audit_.check();
    quote_choices_.check();
    if (std::ranges::any_of(questions_, is_blank)) {
      fail("--prompt: the question is empty; write one, or leave --prompt out to type questions");
    }
    runtime::Sampler sampler(sampling_);
    if (app_->count("--template") == 0 || template_.find(slot) != std::string::npos) return;
    fail("--template: {{}} must stand where the question goes");
  }

  void check_ranks() const override {
    refuse_over_ranks(*app_,
                      {"--exact", "--audit", "--audit-json", "--attention-stats", "--fidelity", "--quotes", "--plot"});
    require_over_ranks(machine_, {}, {&method_, 1});
  }

  void run() override {
    const offload::Snapshot snapshot = open_saved_file(context_);
    StartFacts facts;
    prepare_together([&] { begin(snapshot, facts); });
    runtime::SessionOptions session;
    join_ranks(facts, session);
    const Environment& environment = *environment_;
    agree_on_rates({&method_, 1}, environment);
    WatchedMethod method(method_, environment, audit_);
    const runtime::ModelSource source{*environment.model, *environment.tokenizer, directory_};
    prepare_together([&] {
      PlannedRun planned{directory_, session, {method_}, 0, 0};
      add_saved(environment, snapshot, planned);
      plan_ = announce_plan(environment, planned, environment.profile());
      snapshot.require_model(source.identity());
    });
    runtime::Session context = open_saved(environment, source, snapshot, session, *method.method());
    note("{}: {} tokens\n", shown(context_), context.tokens());
    prepare_method(context, *method.method());
    if (quote_choices_.wanted()) quoted_.emplace(environment, quote_choices_, snapshot.tokens());

    try {
      for (const std::string& question : questions_) answer(environment, {snapshot, context}, method, question);
      if (questions_.empty()) answer_lines(environment, {snapshot, context}, method);
    } catch (...) {  // interrupted, or an answer cannot be printed: what was measured is kept
      method.finish();
      throw;
    }
    method.finish();
    if (quoted_) quoted_->draw();
    keep_hot_reads(environment, context, snapshot, machine_.verbose);
    say_device_memory(*environment.backend);
  }

 private:
  // The text that questions are put to.
  struct Context {
    const offload::Snapshot& saved;
    const runtime::Session& session;
  };

  // Finds what this machine has for the run.
  void begin(const offload::Snapshot& snapshot, StartFacts& facts) {
    audit_.check_files();
    quote_choices_.check_files();
    directory_ = model_of(snapshot, model_);
    check_kept_blocks(*app_, machine_.block_tokens, snapshot.description().shape.block_tokens, context_);
    choose_form(directory_);
    note_unused_sampling(*app_, drawing_.sampling);
    environment_.emplace(machine_, directory_, rope_);
    check_drawing(*environment_, drawing_);
    set_drafts(drawing_, drafts_, exact_.draft, method_, *environment_);
    if (own_template_) {
      drawing_.ends = runtime::end_of_turn_tokens(*environment_->tokenizer);
      drawing_.channels = runtime::answer_form(chat_, {}, "").channels;
    }
    method_ =
        runtime::with_column_recall(with_rates(method_, *environment_, machine_.profile), measured_columns(snapshot));
    facts = {weights_digest(*environment_, directory_), shared_options(*app_), "", chat_.sources()};
  }

  // Chooses how questions are written and answers drawn: as the model's makers say, unless --template does.
  void choose_form(const std::filesystem::path& model) {
    std::optional<runtime::ChatTemplate> own;
    if (template_.empty()) own = runtime::load_chat_template(model);
    own_template_ = own.has_value();
    const Recommended what = own ? Recommended::all : Recommended::rules;
    drawing_ = {sampling_for(*app_, sampling_, model, what, machine_.verbose), predict_, answers_};
    if (!own && template_.empty()) {
      if (machine_.verbose) note("the model has no chat template: a question stands on a line of its own\n");
      template_ = "\n{}";
    }
    chat_ = own ? *own : runtime::ChatTemplate::from_text(template_, slot, "--template");
  }

  void answer_lines(const Environment& environment, const Context& context, WatchedMethod& method) {
    SharedLines input;
    for (std::string line; input.next(line);) {
      if (!is_blank(line)) answer(environment, context, method, line);
    }
  }

  void answer(const Environment& environment, const Context& context, WatchedMethod& method,
              const std::string& question) {
    std::vector<std::int32_t> tokens;
    prepare_together([&] {
      const runtime::ChatMessage message{"user", question};
      const auto [text, guard] = runtime::render_guarded(chat_, *environment.tokenizer, {&message, 1});
      tokens = environment.tokenizer->encode_continuation(text, guard);
      if (tokens.empty()) fail("the question is empty");
    });
    runtime::Session session = context.session.fork();
    session.append(std::span(tokens).first(tokens.size() - 1), [](auto, auto) { check_interrupted(); });
    each_answer(session, drawing_, [&](runtime::Session& own, const Drawing& drawing) {
      Decoded done;
      if (quoted_) quoted_->begin(own);
      decode_and_print(environment, own, method, drawing, {&context.saved, tokens}, done);
      note("{}\n", decode_summary(own, done, predicted_beside(plan_, 0)));
      if (quoted_) quoted_->finish(own, question);
      if (machine_.verbose) note_reach(own, method.method()->options());
    });
  }

  const CLI::App* app_;
  std::string context_;
  std::string model_;
  std::vector<std::string> questions_;
  std::string template_;        // empty: the model's
  runtime::ChatTemplate chat_;  // writes a question
  bool own_template_ = false;   // that is the model's
  Drawing drawing_;
  int predict_ = 64;
  int answers_ = 1;
  runtime::SamplerOptions sampling_;
  AttentionOptions attention_;
  ExactChoices exact_;
  std::optional<runtime::DraftOptions> drafts_;
  AuditChoices audit_;
  QuoteChoices quote_choices_;
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
  runtime::MethodOptions method_;

  std::filesystem::path directory_;  // of the model
  std::optional<Environment> environment_;
  runtime::plan::Plan plan_;
  std::optional<QuotedAnswers> quoted_;
};

}  // namespace

std::unique_ptr<Command> make_ask_command(CLI::App& app) {
  return std::make_unique<AskCommand>(app);
}

}  // namespace hayloft::cli
