#include <algorithm>
#include <limits>
#include <optional>
#include <span>

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
#include "examples/hayloft/process/text_output.h"
#include "offload/error.h"
#include "offload/progress.h"
#include "offload/snapshot/snapshot.h"
#include "offload/text/visible.h"
#include "runtime/chat/calls/answer_form.h"
#include "runtime/chat/conversation.h"
#include "runtime/context/column_choice.h"
#include "runtime/tokenizer/end_of_turn.h"

// hayloft chat: a conversation, a message a line.
namespace hayloft::cli {
namespace {

constexpr const char* chat_examples = R"(Examples:
  hayloft chat -m smollm2.gguf
      on a terminal: type messages; Ctrl-C stops an answer, /exit or Ctrl-D ends, /help
  hayloft chat -m models/Llama-3.2-1B-Instruct --context book.hay --attn sparq
      about a book that hayloft ingest has read with that model
  printf 'What is hay?\nAnd straw?\n' | hayloft chat -m smollm2.gguf
      a message a line)";

constexpr const char* exit_word = "/exit";

class ChatCommand : public Command {
 public:
  explicit ChatCommand(CLI::App& app) : app_(&app) {
    app.footer(chat_examples);
    add_model_option(app, model_, "with --context, where it was when the context was made");
    add_rope_options(app, rope_);
    app.add_option("--context", saved_, "Saved context to talk about, made by hayloft ingest")
        ->type_name("CTX.hay")
        ->take_last();
    common(app, Section::model, {"--context"});
    add_chat_options(app, chat_);
    add_text(
        app, "-c,--ctx-size", "TOKENS", [this](const std::string& text) { room_ = context_length(text); },
        "Room for the conversation, besides what --context holds [16k, or what is left of the positions that the model "
        "was made for]");
    common(app, Section::context, {"--ctx-size"});
    add_text(
        app, "-n,--n-predict", "N", [this](const std::string& text) { predict_ = read_int("--n-predict", text); },
        "Tokens of an answer at most [until it ends]");
    common(app, Section::context, {"--n-predict"});
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
    if (model_.empty() && saved_.empty())
      fail("a model is needed: --model MODEL, or --context CTX.hay, which knows its own");
    method_ = attention_.one_method("chat", session_.cache.columns);
    drafts_ = exact_.drafts(*app_, method_);
    machine_.head = drafts_ && drafts_->head;
    session_.cache.block_tokens = machine_.block_tokens;
    note_unused_prefill(*app_, {&session_.prefill, 1});
    audit_.check();
    runtime::Sampler sampler(sampling_);
  }

  void check_ranks() const override {
    refuse_over_ranks(*app_, {"--exact", "--audit", "--audit-json", "--attention-stats", "--fidelity"});
    require_over_ranks(machine_, session_, {&method_, 1});
  }

  void run() override {
    interrupt_first_rank_alone();
    if (!saved_.empty()) snapshot_.emplace(open_saved_file(saved_));
    StartFacts facts;
    prepare_together([&] { begin(facts); });
    join_ranks(facts, session_);
    agree_on_rates({&method_, 1}, *environment_);
    prepare_together([&] { plan(); });
    const Environment& environment = *environment_;
    WatchedMethod& method = *watched_;
    runtime::Session root = begin_session(environment, directory_, snapshot_, session_, *method.method());
    if (snapshot_) {
      note("{}: {} tokens\n", shown(saved_), root.tokens());
      prepare_method(root, *method.method());
    }
    runtime::Conversation conversation(std::move(root), *environment.tokenizer, *template_, chat_.system);
    try {
      talk(environment, conversation, method);
    } catch (...) {  // an answer cannot be printed: what was measured is kept
      method.finish();
      throw;
    }
    method.finish();
    if (snapshot_) keep_hot_reads(environment, conversation.session(), *snapshot_, machine_.verbose);
    say_device_memory(*environment.backend);
  }

 private:
  // Finds what this machine has for the run.
  void begin(StartFacts& facts) {
    audit_.check_files();
    directory_ = snapshot_ ? model_of(*snapshot_, model_) : std::filesystem::path(model_);
    template_.emplace(chosen_template(chat_, directory_));
    drawing_ = {sampling_for(*app_, sampling_, directory_, Recommended::all, machine_.verbose), predict_};
    note_unused_sampling(*app_, drawing_.sampling);
    environment_.emplace(machine_, directory_, rope_);
    check_drawing(*environment_, drawing_);
    set_drafts(drawing_, drafts_, exact_.draft, method_, *environment_);
    drawing_.ends = runtime::end_of_turn_tokens(*environment_->tokenizer);
    drawing_.channels = runtime::answer_form(*template_, {}, "").channels;
    method_ = with_rates(method_, *environment_, machine_.profile);
    if (snapshot_) method_ = runtime::with_column_recall(method_, measured_columns(*snapshot_));
    facts = {weights_digest(*environment_, directory_), shared_options(*app_), "", template_->sources()};
  }

  void plan() {
    watched_.emplace(method_, *environment_, audit_);
    if (room_ == 0)
      room_ = usual_room(environment_->model->config().max_positions, snapshot_ ? snapshot_->token_count() : 0);
    PlannedRun planned{directory_, session_, {method_}, room_, 0};
    plan_ = announce_session(*app_, *environment_, snapshot_, planned);
    limit_ = planned.tokens;
  }

  static std::int64_t usual_room(std::int64_t positions, std::int64_t saved) {
    constexpr std::int64_t usual = 16 << 10;
    return positions > saved ? std::min(usual, positions - saved) : usual;
  }

  void talk(const Environment& environment, runtime::Conversation& conversation, WatchedMethod& method) const {
    SharedLines input;
    Drawing drawing = drawing_;
    for (std::string line; input.next(line) && line != exit_word;) {
      if (is_blank(line)) continue;
      if (is_command(line)) {
        note(
            "{}commands: /exit ends, as Ctrl-D does; /help says this; Ctrl-C stops an answer; any other line is a "
            "message\n",
            line == "/help" ? ""
                            : fmt::format("{}: no command, and not sent; with a space before it, it is; ",
                                          visible(line.substr(0, 40), Lines::joined)));
        continue;
      }
      try {
        answer(environment, conversation, method, line, drawing);
      } catch (const Interrupted&) {
        print("\n");
        note("the answer was stopped\n");
        if (first_rank()) catch_interrupts();
      }
      ++drawing.sampling.seed;  // the next answer is drawn anew
    }
  }

  // Returns whether a line is /WORD, with or without more behind it; /usr/bin begins a message.
  static bool is_command(const std::string& line) {
    const std::string_view word = std::string_view(line).substr(0, line.find(' '));
    return word.size() > 1 && word[0] == '/' &&
           std::ranges::all_of(word.substr(1), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
  }

  void answer(const Environment& environment, runtime::Conversation& conversation, WatchedMethod& method,
              const std::string& message, Drawing drawing) const {
    std::int64_t left = 0;
    prepare_together([&] {
      left = limit_ - conversation.tokens_with(message);
      if (left >= 1) return;
      fail(
          "the conversation is at its end: with this message it would be longer than the {} tokens of --ctx-size; "
          "begin anew, or give it more room",
          room_);
    });
    const std::span<const std::int32_t> prompt = read(conversation, message);
    if (machine_.verbose && conversation.read_again() > 0) {
      note("{} tokens were read again: the chat template rewrites earlier answers\n", conversation.read_again());
    }
    prepare(conversation.session(), *method.method());
    drawing.most = static_cast<int>(std::min<std::int64_t>(left, drawing.most));
    Decoded done;
    Answer answer;
    const auto keep = [&] { conversation.answered(answer.drawn, answer.text); };
    try {
      decode_and_print(environment, conversation.session(), method, drawing,
                       {snapshot_ ? &*snapshot_ : nullptr, prompt}, done, &answer);
    } catch (...) {
      keep();
      throw;
    }
    keep();
    if (machine_.verbose) note("{}\n", decode_summary(conversation.session(), done, predicted_beside(plan_, 0)));
  }

  // Ranks have parts of different lengths: nothing there is a place where all of them could stop.
  static void prepare(runtime::Session& session, const runtime::Method& method) {
    if (over_ranks()) return session.prepare(method);
    prepare_method(session, method);
  }

  // Returns the tokens of the conversation up to the answer.
  static std::span<const std::int32_t> read(runtime::Conversation& conversation, const std::string& message) {
    std::optional<Progress> progress;
    conversation.ask(message, [&](std::int64_t done, std::int64_t total) {
      check_interrupted_together();
      if (!progress) progress.emplace(progress_sink(), "prompt", "tokens", total);
      progress->update(done);
    });
    return conversation.prompt();
  }

  const CLI::App* app_;
  std::string model_;
  std::string saved_;
  ChatChoices chat_;
  std::int64_t room_ = 0;  // 0: usual_room()
  int predict_ = std::numeric_limits<int>::max();
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
  std::optional<runtime::ChatTemplate> template_;
  std::optional<Environment> environment_;
  std::optional<WatchedMethod> watched_;
  Drawing drawing_;
  std::int64_t limit_ = 0;  // of tokens, those of the saved context included
  runtime::plan::Plan plan_;
};

}  // namespace

std::unique_ptr<Command> make_chat_command(CLI::App& app) {
  return std::make_unique<ChatCommand>(app);
}

}  // namespace hayloft::cli
