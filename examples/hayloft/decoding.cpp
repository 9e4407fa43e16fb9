#include "examples/hayloft/decoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "examples/hayloft/options/exact.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/processes.h"
#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/process/text_output.h"
#include "offload/clock.h"
#include "offload/error.h"
#include "offload/progress.h"
#include "offload/text/format.h"
#include "runtime/chat/calls/answer_form.h"
#include "runtime/tokenizer/text_stream.h"

namespace hayloft::cli {

runtime::StateProgress index_progress(std::optional<Progress>& progress) {
  return [&progress, reached = std::int64_t{-1}](std::int64_t done, std::int64_t total) mutable {
    check_interrupted();
    if (reached < 0 || done < reached) progress.emplace(progress_sink(), "index", "keys", total);
    progress->update(reached = done);
  };
}

void prepare_method(runtime::Session& session, const runtime::Method& method) {
  std::optional<Progress> progress;
  session.prepare(method, index_progress(progress));
}

namespace {

// Prints an answer as it comes. Of one in channels the text for the reader goes to standard output, and to standard
// error what the model says to itself.
class PrintedAnswer {
 public:
  PrintedAnswer(const runtime::Tokenizer& tokenizer, std::int32_t last_of_prompt, bool channels, Answer* answer)
      : tokenizer_(tokenizer), stream_(tokenizer, last_of_prompt), answer_(answer) {
    form_.channels = channels;
    reader_ = runtime::make_answer_reader(form_);
  }

  void push(std::int32_t token) {
    if (!reader_) return show(stream_.push(token));
    const bool special = tokenizer_.is_special(token);
    show(reader_->push({special ? tokenizer_.decode({token}, true) : stream_.push(token), special}));
  }

  void finish() {
    if (!reader_) return show(stream_.finish());
    show(reader_->push({stream_.finish(), false}));
    show(reader_->finish());
    if (thinking_) note("\n");
  }

 private:
  void show(const std::vector<runtime::AnswerPart>& parts) {
    for (const runtime::AnswerPart& part : parts) {
      const bool thinks = part.kind == runtime::AnswerPart::Kind::reasoning;
      if (thinking_ && !thinks) note("\n");
      thinking_ = thinks;
      thinks ? note("{}", part.text) : show(part.text);
    }
  }
  void show(const std::string& text) {
    if (answer_) answer_->text += text;
    print_foreign(text);
  }

  const runtime::Tokenizer& tokenizer_;
  runtime::TextStream stream_;
  Answer* answer_;
  runtime::AnswerForm form_;
  std::unique_ptr<runtime::AnswerReader> reader_;
  bool thinking_ = false;
};

// Makes that method draft for the session; its index is built now.
void draft_by(runtime::Session& session, const runtime::MethodOptions& method) {
  const runtime::SharedMethod made = runtime::make_method(method, session.config().head_dim);
  session.set_draft_method(made);
  prepare_method(session, *made);
  session.set_draft_method(made);
}

}  // namespace

void set_drafts(Drawing& drawing, const std::optional<runtime::DraftOptions>& exact, const std::string& draft,
                const runtime::MethodOptions& method, const Environment& environment) {
  const gpu::Backend& backend = *environment.backend;
  require_drafts(exact, backend, environment.model->config());
  drawing.drafts = exact;
  drawing.drafts_where_exact =
      !exact && method.name == "auto" && draft != "none" && !over_ranks() && backend.tokens_verified_at_once(1) > 1;
  if (drawing.drafts_where_exact) drawing.drafts.emplace();
}

void check_drawing(const Environment& environment, const Drawing& drawing) {
  drawing.sampling.rules.require_within(environment.model->config().vocab_size);
  if (drawing.answers > 1 && drawing.sampling.temperature == 0) {
    fail("--answers {}: all are the same at temperature 0; add --temp, as in --temp 0.8", drawing.answers);
  }
}

void each_answer(runtime::Session& session, const Drawing& drawing, const AnswerOnce& answer) {
  if (drawing.answers == 1) return answer(session, drawing);
  Drawing own = drawing;
  for (int i = 0; i < drawing.answers; ++i, ++own.sampling.seed) {
    if (i > 0) print("\n");
    runtime::Session fork = session.fork();
    answer(fork, own);
  }
}

void decode_and_print(const Environment& environment, runtime::Session& session, WatchedMethod& method,
                      const Drawing& drawing, const TokensBefore& before, Decoded& done, Answer* answer) {
  std::vector<std::int32_t> ends = environment.model->config().eos_tokens;
  ends.insert(ends.end(), drawing.ends.begin(), drawing.ends.end());
  runtime::SamplerOptions sampling = drawing.sampling;
  sampling.rules.end_tokens = ends;
  runtime::Sampler sampler(sampling);
  if (sampler.reads_prompt()) {
    if (before.saved) sampler.read(before.saved->tokens());
    sampler.read(before.prompt);
  }
  std::int32_t token = before.prompt.back();
  const runtime::ExpertTraffic experts_before = environment.model->expert_traffic();
  PrintedAnswer printed(*environment.tokenizer, token, drawing.channels, answer);
  method.watch(session);
  struct Keeps {  // also when Interrupted is thrown
    ~Keeps() { method.decoded(session); }
    WatchedMethod& method;
    const runtime::Session& session;
  } const keeps{method, session};
  done = {};
  const auto is_end = [&](std::int32_t drawn) { return std::ranges::find(ends, drawn) != ends.end(); };
  std::optional<runtime::Drafting> drafting;  // once it is wanted: the text of a long context takes a while to index
  std::vector<std::int32_t> decoded;
  const auto begin_drafting = [&] {
    drafting.emplace(*drawing.drafts);
    if (before.saved) drafting->read(before.saved->tokens());
    drafting->read(before.prompt);
    drafting->read(decoded);
    if (drawing.drafts->self) draft_by(session, *drawing.drafts->self);
  };
  bool ended = false;
  const auto take = [&](std::int32_t drawn) {
    token = drawn;
    if (answer) answer->drawn.push_back(drawn);
    ended = is_end(drawn);
    if (ended) return false;
    ++done.tokens;
    printed.push(drawn);
    return true;
  };
  while (!ended && done.tokens < drawing.most) {
    std::int64_t together = drawing.drafts ? drawing.most - done.tokens : 0;
    if (drawing.drafts_where_exact) together = std::min(together, session.exact_ahead());
    const Clock::time_point start = Clock::now();
    if (together > 0) {
      check_interrupted();
      if (!drafting) begin_drafting();
      drafting->next(session, sampler, static_cast<int>(together), take);
      done.drafts = drafting->figures();
    } else {
      const std::int32_t drawn = processes().next_token(session, token, sampler);
      decoded.push_back(drawn);
      if (drafting) drafting->read({&drawn, 1});
      method.stepped(session);
      take(drawn);
    }
    done.seconds += seconds_since(start);
  }
  done.experts += environment.model->expert_traffic() - experts_before;
  printed.finish();
  print("\n");
}

std::string decode_summary(const runtime::Session& session, const Decoded& done, const std::string& beside) {
  std::string line = fmt::format("generated: {} tokens", done.tokens);
  if (session.steps() == 0) return line;
  const auto steps = static_cast<std::uint64_t>(session.steps());
  line += fmt::format(", {:.2f} ms/token{}\nread per token:", done.seconds * 1000 / static_cast<double>(steps), beside);
  const runtime::Counters counters = session.counters();
  for (int place = 0; place < runtime::place_count; ++place) {
    const auto which = static_cast<runtime::Place>(place);
    line += fmt::format("{} {} {}", place > 0 ? "," : "", runtime::name(which),
                        format_bytes(counters.total(which) / steps));
  }
  const double columns = session.held_share(runtime::Kind::columns), rows = session.held_share(runtime::Kind::rows);
  if (columns + rows > 0) {
    line += fmt::format("; the device had {:.1f}% of the columns and {:.1f}% of the rows", 100 * columns, 100 * rows);
  }
  if (const std::uint64_t fetched = counters.ahead_fetched; fetched > 0) {
    const std::uint64_t read = counters.at(runtime::Place::link, runtime::Kind::columns) +
                               counters.at(runtime::Place::link, runtime::Kind::scales);
    line += fmt::format(
        "; {} per token fetched ahead, {:.1f}% of it used, which is {:.1f}% of the columns over the link",
        format_bytes(fetched / steps), 100 * static_cast<double>(counters.ahead_used) / static_cast<double>(fetched),
        100 * static_cast<double>(counters.ahead_used) / static_cast<double>(read));
  }
  if (const runtime::ExpertTraffic& experts = done.experts; experts.asked > 0) {
    line += fmt::format("\nexperts: {} per token over the link; the device had {:.1f}% of those asked for",
                        format_bytes(experts.link_bytes / steps),
                        100 * static_cast<double>(experts.held) / static_cast<double>(experts.asked));
  }
  if (done.drafts.passes > 0) line += fmt::format("\nexact: {}", runtime::draft_line(done.drafts));
  return line;
}

}  // namespace hayloft::cli
