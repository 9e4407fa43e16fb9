#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/decode/drafting.h"
#include "runtime/decode/sampler.h"
#include "runtime/decode/session.h"
#include "runtime/serve/generation.h"
#include "runtime/serve/ranks/led_session.h"
#include "runtime/serve/reasoning.h"
#include "runtime/serve/saved_prompts.h"
#include "runtime/serve/stop_strings.h"
#include "runtime/tokenizer/text_stream.h"

namespace hayloft::runtime::serve {

// One request on its way: a session that reads the prompt chunk by chunk and then decodes token by token. For the
// engine's thread, but for cancel().
class Job {
 public:
  Job(GenerationRequest request, std::shared_ptr<GenerationListener> listener, const Model& model,
      const Tokenizer& tokenizer);

  const GenerationRequest& request() const { return request_; }
  GenerationListener& listener() { return *listener_; }

  void cancel() { cancelled_ = true; }  // from any thread: nobody listens any more
  bool cancelled() const { return cancelled_; }

  // Begins with a session that has read the first `read` tokens of the request behind `context_tokens` others.
  void start(LedSession session, std::int64_t context_tokens, std::size_t read);
  bool started() const { return session_.has_value(); }
  bool reading() const { return read_ < to_read(); }
  std::size_t read() const { return read_; }
  std::size_t to_read() const;  // the last token goes through a step, but with echo

  // The answer keeps to a grammar, if there is one, and to the bound of its reasoning. Before it begins.
  void hold_to(std::shared_ptr<TokenFilter> grammar);

  // Goes on from what another of the same prompt has scored, whose client has left; that one is then empty.
  void take_over(Job& other);
  // Both want the same of the same prompt, with echo.
  bool scores_like(const Job& other) const;
  // With echo: the prompt has been read, its client had left, and what was found has been told to nobody.
  bool scored_for_nobody() const { return cancelled_ && !scored_.empty() && !reading(); }

  // Reads up to the next multiple of `chunk` tokens.
  void read_chunk(std::size_t chunk, std::int64_t total_context);
  // Returns what the next token of the answer is decoded from, over ranks without a sampler; none where it follows from
  // what was scored, or there is to be none.
  std::optional<Session::Step> begin_step(const Method& method);
  // Goes on from that step; null: from none. True when the answer has ended, of which tell_end() tells the
  // listener. Throws what the step has failed with.
  bool end_step(Session::Step* step);

  // By drafts instead, several tokens in one pass of exact attention; where drafts_alone() nothing else is asked of a
  // step: no log-probabilities, no audit, one process. True when the answer has ended.
  bool drafts_alone() const;
  bool decode_pass(const Method& method, const DraftOptions& drafts);
  void tell_end();
  DraftFigures draft_figures() const { return drafting_ ? drafting_->figures() : DraftFigures(); }

  const LedSession& session() const { return *session_; }
  LedSession take_session() { return std::move(*session_); }
  // Returns the tokens behind the context that the session has read or decoded.
  std::vector<std::int32_t> session_tokens() const;
  const Usage& usage() const { return usage_; }

  // Returns whether tokens are drawn by rules that go by the prompt and by what its saved context holds.
  bool reads_prompt() const { return sampler_.reads_prompt(); }

  // The engine's: where the prompt is saved as it is read, and the tokens of its saved context, where it quotes them or
  // draws by them.
  SavedPrompts::Handle saving;
  std::vector<std::int32_t> text_of_context;
  bool context_replaced = false;  // since it has begun: what it has read is of no use to others

 private:
  struct End {
    FinishReason reason = FinishReason::stop;
    std::string rest;
  };
  void score_chunk(std::size_t end);
  void prepare(const Method& method);                   // before its first step
  bool accept(std::int32_t token, TokenChoice choice);  // true at the end
  std::optional<FinishReason> take(std::int32_t token, TokenChoice choice);
  bool ends(std::int32_t token) const;
  std::string shown(std::int32_t token);
  std::vector<TextRun> runs_of(std::int32_t token, const std::string& shown);
  bool finish(FinishReason reason);
  AnswerAudit audit();

  GenerationRequest request_;
  End end_;
  std::shared_ptr<GenerationListener> listener_;
  const Model& model_;
  const Tokenizer& tokenizer_;
  std::atomic<bool> cancelled_ = false;

  std::optional<LedSession> session_;
  std::size_t read_ = 0;
  std::vector<float> logits_;        // of what follows the last token scored, with echo
  std::vector<TokenChoice> scored_;  // of the prompt, with echo
  bool told_scored_ = false;
  std::vector<std::int32_t> answer_;  // generated so far
  bool prepared_ = false;
  Sampler sampler_;
  std::optional<Drafting> drafting_;
  TextStream text_;
  StopStrings stop_;
  std::unique_ptr<AnswerReader> first_call_;   // reads up to it, where the answer ends with it
  std::shared_ptr<ReasoningCount> reasoning_;  // null: there is none
  Usage usage_;
  std::unique_ptr<AnswerAuditor> auditor_;
};

}  // namespace hayloft::runtime::serve
