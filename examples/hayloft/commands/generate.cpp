#include <optional>

#include "examples/hayloft/audit_options.h"
#include "examples/hayloft/begin_session.h"
#include "examples/hayloft/command.h"
#include "examples/hayloft/decoding.h"
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
#include "examples/hayloft/process/shared_input.h"
#include "examples/hayloft/process/text_input.h"
#include "examples/hayloft/reach.h"
#include "offload/clock.h"
#include "offload/error.h"
#include "offload/progress.h"
#include "offload/text/format.h"
#include "runtime/chat/calls/answer_form.h"
#include "runtime/chat/special_guard.h"
#include "runtime/context/column_choice.h"
#include "runtime/decode/sampler.h"
#include "runtime/decode/session.h"
#include "runtime/tokenizer/end_of_turn.h"

// hayloft generate: text from a prompt, streamed.
namespace hayloft::cli {
namespace {

constexpr const char* generate_examples = R"(Examples:
  hayloft generate -m models/Llama-3.2-1B -p "The hay is in the" -n 64
      the most likely continuation
  hayloft generate -m models/Llama-3.2-1B -f book.txt --temp 0.8 --attn sparq --attn-k 512
      a book as the prompt, sampling, SparQ attention
  hayloft generate -m smollm2.gguf --chat -p "What is hay?"
      an answer to a message)";

class GenerateCommand : public Command {
 public:
  explicit GenerateCommand(CLI::App& app) : app_(&app) {
    app.footer(generate_examples);
    add_model_option(app, model_, "");
    add_rope_options(app, rope_);
    app.add_option("--context", saved_, "Saved context to continue, made by hayloft ingest")
        ->type_name("CTX.hay")
        ->take_last();
    CLI::Option* const prompt = app.add_option("-p,--prompt", prompt_, "Text to continue")->type_name("TEXT");
    CLI::Option* const file =
        app.add_option("-f,--file", file_, "File with the text to continue; - is standard input")->type_name("FILE");
    prompt->take_last()->excludes(file);
    file->take_last();
    app.add_flag("--chat", chat_, "The text is a message, written by the chat template");
    add_text(
        app, "-c,--ctx-size", "TOKENS", [this](const std::string& text) { context_ = context_length(text); },
        "Room for the prompt and what follows [what they need]");
    common(app, Section::model, {"--context"});
    common(app, Section::text, {"--prompt", "--file", "--chat"});
    add_chat_options(app, choices_);
    common(app, Section::context, {"--ctx-size"});
    add_predict_option(app, predict_);
    add_answers_option(app, answers_);
    add_sampling_options(app, sampling_);
    add_attention_options(app, attention_, {"auto"});
    add_exact_options(app, exact_);
    add_prefill_options(app, session_);
    add_audit_options(app, audit_);
    add_store_options(app, session_.cache.columns, session_.cache.rows);
    add_weights_option(app, machine_);
    add_products_option(app, machine_);
    add_machine_options(app, machine_);
    add_device_cache_options(app, machine_);
    add_step_graphs_option(app, machine_);
    add_profile_option(app, machine_);
    add_statement_option(app, audit_);
  }

  void check() override {
    if (prompt_.empty() && file_.empty()) fail("a prompt is needed: --prompt TEXT or --file FILE");
    if (model_.empty() && saved_.empty())
      fail("a model is needed: --model DIR, or --context CTX.hay, which knows its own");
    for (const char* option : {"--system", "--chat-template"}) {
      if (!chat_ && app_->get_option(option)->count() > 0) fail("{} goes with --chat", option);
    }
    method_ = attention_.one_method("generate", session_.cache.columns);
    drafts_ = exact_.drafts(*app_, method_);
    machine_.head = drafts_ && drafts_->head;
    session_.cache.block_tokens = machine_.block_tokens;
    note_unused_prefill(*app_, {&session_.prefill, 1});
    audit_.check();
    runtime::Sampler sampler(sampling_);  // names the option that is out of range
  }

  void check_ranks() const override {
    refuse_over_ranks(*app_, {"--exact", "--audit", "--audit-json", "--attention-stats", "--fidelity"});
    require_over_ranks(machine_, session_, {&method_, 1});
  }

  void run() override {
    if (!saved_.empty()) snapshot_.emplace(open_saved_file(saved_));
    if (file_ == "-") {
      prepare_together([] {});  // they meet
      prompt_ = read_text_together("--file", file_);
    }
    StartFacts facts;
    prepare_together([&] { begin(facts); });
    join_ranks(facts, session_);
    agree_on_rates({&method_, 1}, *environment_);
    prepare_together([&] { plan(); });
    const Environment& environment = *environment_;
    const Clock::time_point start = Clock::now();
    runtime::Session session = begin(environment);
    read(session, std::span(prompt_tokens_).first(prompt_tokens_.size() - 1));
    prefill_seconds_ = seconds_since(start);
    WatchedMethod& method = *watched_;
    prepare_method(session, *method.method());
    network_before_ = peers().ledger();
    try {
      each_answer(session, drawing_,
                  [&](runtime::Session& own, const Drawing& drawing) { answer(environment, own, method, drawing); });
    } catch (...) {  // interrupted, or the text cannot be printed: what was measured is kept
      method.finish();
      throw;
    }
    method.finish();
    if (snapshot_) keep_hot_reads(environment, session, *snapshot_, machine_.verbose);
    say_device_memory(*environment.backend);
  }

 private:
  // Finds what this machine has for the run.
  void begin(StartFacts& facts) {
    audit_.check_files();
    runtime::GuardedText prompt{file_.empty() || file_ == "-" ? prompt_ : read_text("--file", file_), ""};
    if (chat_ && is_blank(prompt.text)) fail("--chat: the message is empty");
    directory_ = snapshot_ ? model_of(*snapshot_, model_) : std::filesystem::path(model_);
    std::optional<runtime::ChatTemplate> chat;
    if (chat_) chat = chosen_template(choices_, directory_);
    const Recommended what = chat_ ? Recommended::all : Recommended::rules;
    drawing_ = {sampling_for(*app_, sampling_, directory_, what, machine_.verbose), predict_, answers_};
    note_unused_sampling(*app_, drawing_.sampling);
    environment_.emplace(machine_, directory_, rope_);
    const runtime::Tokenizer& tokenizer = *environment_->tokenizer;
    check_drawing(*environment_, drawing_);
    set_drafts(drawing_, drafts_, exact_.draft, method_, *environment_);
    if (chat) {
      prompt = message(prompt.text, *chat, tokenizer);
      drawing_.ends = runtime::end_of_turn_tokens(tokenizer);
      drawing_.channels = runtime::answer_form(*chat, {}, "").channels;
    }
    method_ = with_rates(method_, *environment_, machine_.profile);
    if (snapshot_) method_ = runtime::with_column_recall(method_, measured_columns(*snapshot_));
    prompt_tokens_ = snapshot_ ? tokenizer.encode_continuation(prompt.text, prompt.guard)
                               : tokenizer.encode_prompt(prompt.text, prompt.guard);
    if (prompt_tokens_.empty()) fail("the prompt is empty: there is nothing to go on from");
    facts = {weights_digest(*environment_, directory_), shared_options(*app_), prompt.text};
  }

  // `auto` has the columns of a long prompt chosen by what they find in it, unless an option names them.
  runtime::Session begin(const Environment& environment) {
    if (snapshot_ || method_.name != "auto" || app_->count("--columns") > 0) {
      return begin_session(environment, directory_, snapshot_, session_, *watched_->method());
    }
    runtime::ColumnChoice choice;
    const auto tokens = std::span(prompt_tokens_).first(prompt_tokens_.size() - 1);
    runtime::Session session = runtime::read_choosing(
        *environment.model, *environment.arena, session_, tokens, [](auto, auto) { check_interrupted(); }, choice);
    if (!choice.recall) return session;
    method_ = runtime::with_column_recall(method_, choice.recall);
    watched_.emplace(method_, environment, audit_);
    if (machine_.verbose) note("{}\n", runtime::column_choice_line(choice));
    return session;
  }

  void plan() {
    watched_.emplace(method_, *environment_, audit_);
    PlannedRun planned{
        directory_, session_, {method_}, tokens_needed(static_cast<std::int64_t>(prompt_tokens_.size())), 0};
    plan_ = announce_session(*app_, *environment_, snapshot_, planned);
  }

  runtime::GuardedText message(const std::string& text, const runtime::ChatTemplate& chat,
                               const runtime::Tokenizer& tokenizer) const {
    std::vector<runtime::ChatMessage> messages;
    if (!choices_.system.empty()) messages.push_back({"system", choices_.system});
    messages.push_back({"user", text});
    return runtime::render_guarded(chat, tokenizer, messages);
  }

  std::int64_t tokens_needed(std::int64_t prompt) const {
    const std::int64_t needed = prompt + predict_;
    if (context_ > 0 && needed > context_) {
      fail("--ctx-size {}: the prompt's {} tokens and {} to generate need {}", context_, prompt, predict_, needed);
    }
    return std::max(needed, context_);
  }

  void read(runtime::Session& session, std::span<const std::int32_t> tokens) const {
    tokens = tokens.subspan(static_cast<std::size_t>(snapshot_ ? 0 : session.tokens()));
    Progress progress(progress_sink(), "prompt", "tokens", static_cast<std::int64_t>(tokens.size()));
    session.append(tokens, [&](std::int64_t done, std::int64_t) {
      check_interrupted();
      progress.update(done);
    });
  }

  void answer(const Environment& environment, runtime::Session& session, WatchedMethod& method,
              const Drawing& drawing) {
    const bool first = drawing.sampling.seed == drawing_.sampling.seed;
    try {
      decode_and_print(environment, session, method, drawing, {snapshot_ ? &*snapshot_ : nullptr, prompt_tokens_},
                       done_);
    } catch (...) {
      summarise(session, method, first);
      throw;
    }
    summarise(session, method, first);
  }

  void summarise(const runtime::Session& session, const WatchedMethod& method, bool with_prompt) const {
    const std::size_t prompt = prompt_tokens_.size();
    std::string line = "\n";
    if (with_prompt) {
      line += fmt::format("prompt: {} tokens", prompt);
      if (prompt > 1) line += fmt::format(", {:.0f} tokens/s", static_cast<double>(prompt - 1) / prefill_seconds_);
      line += "\n";
    }
    note("{}{}\n", line, decode_summary(session, done_, predicted_beside(plan_, 0)));
    if (session.steps() > 0) note_network(static_cast<std::uint64_t>(session.steps()));
    if (machine_.verbose) note_reach(session, method.method()->options());
  }

  void note_network(std::uint64_t steps) const {
    const auto network = peers().ledger().since(network_before_).total();
    if (network.messages == 0) return;
    note("network per token: {} messages, {} sent, {} received by each of {} ranks\n", network.messages / steps,
         format_bytes(network.sent / steps), format_bytes(network.received / steps), rank_count());
  }

  const CLI::App* app_;
  std::string model_;
  std::string saved_;
  std::string prompt_;
  std::string file_;
  bool chat_ = false;
  ChatChoices choices_;
  int predict_ = 128;
  int answers_ = 1;
  std::int64_t context_ = 0;  // 0: what prompt and predict_ need
  runtime::SamplerOptions sampling_;
  AttentionOptions attention_;
  ExactChoices exact_;
  std::optional<runtime::DraftOptions> drafts_;
  AuditChoices audit_;
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
  runtime::SessionOptions session_;
  runtime::MethodOptions method_;

  std::optional<offload::Snapshot> snapshot_;
  std::filesystem::path directory_;  // of the model
  std::optional<Environment> environment_;
  std::optional<WatchedMethod> watched_;
  Drawing drawing_;
  std::vector<std::int32_t> prompt_tokens_;
  runtime::plan::Plan plan_;
  runtime::cluster::Ledger network_before_;  // the first step
  double prefill_seconds_ = 0;
  Decoded done_;
};

}  // namespace

std::unique_ptr<Command> make_generate_command(CLI::App& app) {
  return std::make_unique<GenerateCommand>(app);
}

}  // namespace hayloft::cli
