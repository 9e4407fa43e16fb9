#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/decode/sampler.h"
#include "runtime/fidelity/attention_statement.h"
#include "runtime/grammar/constraint.h"
#include "runtime/serve/answer_audit.h"

// Says what a client asks of the engine, and what it is told while its answer is made.
namespace hayloft::runtime::serve {

struct GenerationRequest {
  std::vector<std::int32_t> tokens;  // the prompt; behind a saved context, what is put to it
  std::string context;               // name of a saved context; empty: none
  // So many of the tokens are a conversation, and those behind them begin the answer to it; 0: the prompt is none.
  std::size_t conversation = 0;
  int max_tokens = 16;      // generated at most; 0 only with echo
  bool fills_room = false;  // max_tokens is what there is room for, and less than was asked for
  SamplerOptions sampling;
  // The texts and tokens that end the answer and are not part of it; texts may name special tokens, as they are
  // written, and with them the heads of an answer in channels, of which nothing else ends it (`reasoning` tells them).
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_tokens;
  // The answer ends with its first call as well, as one of this form is read; null: it does not. With `runs`.
  std::shared_ptr<const AnswerForm> one_call = nullptr;
  std::shared_ptr<grammar::Constraint> constraint = nullptr;  // the grammar that the answer keeps to; null: none
  // The tokens of reasoning are counted, as an answer of this form is read, and so many may be drawn before it is made
  // to end; null: there is none, 0: as many as the model wants.
  std::shared_ptr<const AnswerForm> reasoning = nullptr;
  int most_reasoning = 0;
  bool echo = false;        // log-probabilities of the prompt are wanted: it is read by exact attention
  int logprobs = -1;        // so many of the most likely tokens are told beside each; -1: none, 0: the token alone
  bool ignore_end = false;  // end-of-text tokens do not end the answer
  bool audit = false;       // its steps are held against exact attention
  bool runs = false;        // special tokens are told as well, in GeneratedToken::runs
  int map = 0;              // into so many parts the text is cut, of which the audit tells the attention; 0: none
  int quotes = 0;           // so many places of the text that were attended most are told with the audit
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;  // natural logarithm of softmax over the whole vocabulary, at temperature 1
};

// One token and what was likely in its place.
struct TokenChoice {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first; as many as were asked for
};

struct GeneratedToken {
  TokenChoice choice;              // without `logprobs` only the token is set
  std::string text;                // what can be shown now; text that may become a stop string is held back
  std::vector<TextRun> runs = {};  // the same with special tokens, where they are wanted
  bool ends = false;               // it ends the answer and is no part of its text: told with `logprobs` alone
};

enum class FinishReason : std::uint8_t { stop, length };

struct Usage {
  std::int64_t prompt_tokens = 0;  // a saved context's included
  std::int64_t cached_tokens = 0;  // of them, not read again
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;                   // of them, up to the end of reasoning
  std::string stop = {};                               // the stop string that has ended the answer; empty: none has
  std::shared_ptr<const AnswerAudit> audit = nullptr;  // where it was asked for
  AttentionStatement attention = {};                   // of the decoded tokens
};

// Why there is no answer, as HTTP counts: 400 the request or a context that cannot be asked, 404 no such context, 500
// here, 503 stopping or a context that was replaced meanwhile, 507 memory.
struct Failure {
  int status = 500;
  std::string message;
};

// Takes what the engine tells of one request, in order; finished() or failed() is the last call. Called by the engine's
// thread, which waits meanwhile: they hand over and return, and never throw.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  virtual void reading(std::int64_t done, std::int64_t total) = 0;  // tokens of the prompt
  // With echo, once: every token of the prompt but the first.
  virtual void scored(std::vector<TokenChoice> prompt) = 0;
  virtual void generated(GeneratedToken token) = 0;
  // `rest`: text held back until now.
  virtual void finished(FinishReason reason, const std::string& rest, const Usage& usage) = 0;
  virtual void failed(const Failure& failure) = 0;
};

}  // namespace hayloft::runtime::serve
