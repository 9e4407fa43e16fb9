#include "runtime/serve/job.h"

#include <algorithm>
#include <utility>

#include "runtime/serve/logprobs.h"

namespace hayloft::runtime::serve {
namespace {

constexpr std::size_t kScoredAtOnce = 128;  // tokens whose logits, [vocab] each, are in memory together
constexpr std::int64_t kNotQuoted = 32;

// Rules about the least length go by what ends an answer here.
SamplerOptions sampling_with_ends(const GenerationRequest& request, const Model& model) {
  SamplerOptions sampling = request.sampling;
  const std::vector<std::int32_t>& ends = model.config().eos_tokens;
  if (!request.ignore_end) sampling.rules.end_tokens.insert(sampling.rules.end_tokens.end(), ends.begin(), ends.end());
  return sampling;
}

}  // namespace

Job::Job(GenerationRequest request, std::shared_ptr<GenerationListener> listener, const Model& model,
         const Tokenizer& tokenizer)
    : request_(std::move(request)),
      listener_(std::move(listener)),
      model_(model),
      tokenizer_(tokenizer),
      sampler_(sampling_with_ends(request_, model)),
      text_(tokenizer, request_.tokens.back()),
      stop_(request_.stop, request_.runs) {
  if (request_.one_call) first_call_ = make_answer_reader(*request_.one_call);
  if (request_.reasoning) reasoning_ = std::make_shared<ReasoningCount>(*request_.reasoning, tokenizer);
}

void Job::hold_to(std::shared_ptr<TokenFilter> grammar) {
  if (reasoning_ && request_.most_reasoning > 0) {
    std::vector<std::int32_t> begins = tokenizer_.encode_continuation(request_.reasoning->answer_begins());
    grammar = std::make_shared<ReasoningBound>(reasoning_, request_.most_reasoning, std::move(begins), grammar);
  }
  if (grammar) sampler_.hold_to(std::move(grammar));
}

std::size_t Job::to_read() const {
  return request_.tokens.size() - (request_.echo ? 0 : 1);
}

void Job::start(LedSession session, std::int64_t context_tokens, std::size_t read) {
  session_.emplace(std::move(session));
  read_ = read;
  usage_.prompt_tokens = context_tokens + static_cast<std::int64_t>(request_.tokens.size());
  usage_.cached_tokens = context_tokens + static_cast<std::int64_t>(read);
}

void Job::take_over(Job& other) {
  const std::int64_t context_tokens =
      other.usage_.prompt_tokens - static_cast<std::int64_t>(other.request_.tokens.size());
  start(std::move(*other.session_), context_tokens, other.read_);
  scored_ = std::move(other.scored_);
  logits_ = std::move(other.logits_);
  text_of_context = std::move(other.text_of_context);
}

bool Job::scores_like(const Job& other) const {
  return request_.echo && other.request_.echo && request_.context == other.request_.context &&
         request_.logprobs == other.request_.logprobs && request_.max_tokens == other.request_.max_tokens &&
         request_.tokens == other.request_.tokens;
}

void Job::read_chunk(std::size_t chunk, std::int64_t total_context) {
  const std::size_t end = std::min((read_ / chunk + 1) * chunk, to_read());
  if (request_.echo) {
    score_chunk(end);
  } else {
    // Its tail shrinks when it is kept for others, and at the end, and not after every chunk.
    const bool more_follows = end < to_read() / chunk * chunk;
    session_->append(std::span(request_.tokens).subspan(read_, end - read_), more_follows);
  }
  read_ = end;
  listener_->reading(total_context + static_cast<std::int64_t>(read_), usage_.prompt_tokens);
}

void Job::score_chunk(std::size_t end) {
  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  for (std::size_t at = read_; at < end;) {
    const std::size_t count = std::min(kScoredAtOnce, end - at);
    const std::vector<float> logits = session_->score(std::span(request_.tokens).subspan(at, count));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t position = at + i;
      if (!logits_.empty())
        scored_.push_back(choice_of(logits_, request_.tokens[position], std::max(request_.logprobs, 0)));
      logits_.assign(logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                     logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
    }
    at += count;
  }
}

void Job::prepare(const Method& method) {
  if (prepared_) return;
  session_->prepare(method);
  if (sampler_.reads_prompt()) {
    sampler_.read(text_of_context);
    sampler_.read(request_.tokens);
  }
  if (request_.audit) {
    auditor_ = std::make_unique<AnswerAuditor>(session_->here(), model_.backend(), request_.quotes, request_.map);
  }
  prepared_ = true;
}

bool Job::drafts_alone() const {
  return !request_.echo && request_.logprobs < 0 && !request_.audit && request_.max_tokens > 0 &&
         !session_->over_ranks();
}

bool Job::decode_pass(const Method& method, const DraftOptions& drafts) {
  prepare(method);
  Session& session = session_->here();
  if (!drafting_) {
    if (drafts.self) {
      const SharedMethod made = make_method(*drafts.self, model_.config().head_dim);
      session.prepare(*made);
      session.set_draft_method(made);
    }
    drafting_.emplace(drafts);
    drafting_->read(text_of_context);
    drafting_->read(request_.tokens);
    drafting_->read(answer_);
  }
  std::optional<FinishReason> reason;
  drafting_->next(session, sampler_, request_.max_tokens - static_cast<int>(answer_.size()), [&](std::int32_t token) {
    reason = take(token, {});
    return !reason;
  });
  return reason && finish(*reason);
}

std::optional<Session::Step> Job::begin_step(const Method& method) {
  if (request_.echo && !std::exchange(told_scored_, true)) listener_->scored(std::exchange(scored_, {}));
  if (request_.max_tokens == 0) return std::nullopt;
  prepare(method);
  if (!logits_.empty()) return std::nullopt;  // by reading the prompt: its last token is in the session
  Session::Step step;
  step.session = &session_->here();
  step.token = answer_.empty() ? request_.tokens.back() : answer_.back();
  // Over ranks the others need no token before it is decoded, when they are told it anyway.
  step.sampler = request_.logprobs < 0 && !session_->over_ranks() ? &sampler_ : nullptr;
  return step;
}

bool Job::end_step(Session::Step* step) {
  if (request_.max_tokens == 0) return finish(FinishReason::length);
  if (step != nullptr && step->failure) std::rethrow_exception(step->failure);
  if (step != nullptr && step->sampler != nullptr) return accept(step->next, {});
  const std::vector<float> logits = step != nullptr ? std::move(step->logits) : std::exchange(logits_, {});
  const std::int32_t token = sampler_.sample(logits);
  return accept(token, request_.logprobs < 0 ? TokenChoice{} : choice_of(logits, token, request_.logprobs));
}

bool Job::ends(std::int32_t token) const {
  const auto among = [&](const std::vector<std::int32_t>& tokens) {
    return std::ranges::find(tokens, token) != tokens.end();
  };
  return (!request_.ignore_end && among(model_.config().eos_tokens)) || among(request_.stop_tokens);
}

// Special tokens are no part of the text, but a stop string may name them, in answers of channels each as a whole; in
// heads of messages, which no client sees, none is looked for; of the tokens that an answer has at least, none is
// looked at.
std::string Job::shown(std::int32_t token) {
  if (answer_.size() <= static_cast<std::size_t>(request_.sampling.rules.min_new_tokens)) return text_.push(token);
  if (!tokenizer_.is_special(token)) {
    return reasoning_ && reasoning_->heads() ? stop_.push_head(text_.push(token)) : stop_.push(text_.push(token));
  }
  const bool heads = request_.reasoning && request_.reasoning->channels;  // it is of one
  return stop_.push_hidden(tokenizer_.decode({token}, true), heads);
}

// The tokens that an answer has at least have not gone through the stop strings.
std::vector<TextRun> Job::runs_of(std::int32_t token, const std::string& shown) {
  if (answer_.size() > static_cast<std::size_t>(request_.sampling.rules.min_new_tokens)) return stop_.runs();
  if (tokenizer_.is_special(token)) return {{tokenizer_.decode({token}, true), true}};
  return {{shown, false}};
}

bool Job::accept(std::int32_t token, TokenChoice choice) {
  if (drafting_) drafting_->read({&token, 1});
  const std::optional<FinishReason> reason = take(token, std::move(choice));
  return reason && finish(*reason);
}

// The answer goes on with the token; why it ends with it, if it does.
std::optional<FinishReason> Job::take(std::int32_t token, TokenChoice choice) {
  ++usage_.completion_tokens;
  answer_.push_back(token);
  if (reasoning_) reasoning_->take(token);
  choice.chosen.token = token;
  if (ends(token)) {
    if (request_.logprobs >= 0) listener_->generated({std::move(choice), {}, {}, /*ends=*/true});
    return FinishReason::stop;
  }
  GeneratedToken generated{std::move(choice), shown(token), {}};
  if (request_.runs) generated.runs = runs_of(token, generated.text);
  if (first_call_) {
    for (const TextRun& run : generated.runs) first_call_->push(run);
  }
  listener_->generated(std::move(generated));
  if (stop_.found() || sampler_.filter_finished() || (first_call_ && first_call_->ended())) return FinishReason::stop;
  if (answer_.size() >= static_cast<std::size_t>(request_.max_tokens)) return FinishReason::length;
  return std::nullopt;
}

bool Job::finish(FinishReason reason) {
  std::string rest = stop_.push(text_.finish());
  if (stop_.found()) {
    reason = FinishReason::stop;
    usage_.stop = stop_.which();
  } else {
    rest += stop_.rest();
  }
  if (reasoning_) usage_.reasoning_tokens = reasoning_->tokens();
  if (auditor_) usage_.audit = std::make_shared<const AnswerAudit>(audit());
  usage_.attention.add(session_->here());
  if (usage_.audit && usage_.audit->samples > 0) {
    usage_.attention.mass = usage_.audit->mass;
    usage_.attention.samples = usage_.audit->samples;
  }
  end_ = {reason, std::move(rest)};
  return true;
}

void Job::tell_end() {
  listener_->finished(end_.reason, end_.rest, usage_);
}

// A saved context is quoted, not the question put to it; of a prompt without one, all but its last tokens, which every
// answer attends to.
AnswerAudit Job::audit() {
  const std::int64_t context = usage_.prompt_tokens - static_cast<std::int64_t>(request_.tokens.size());
  const std::int64_t quotable = context > 0 ? context : usage_.prompt_tokens - kNotQuoted;
  return auditor_->finish(session_->here(), tokenizer_, quotable, context > 0 ? text_of_context : request_.tokens);
}

std::vector<std::int32_t> Job::session_tokens() const {
  std::vector<std::int32_t> tokens(request_.tokens.begin(),
                                   request_.tokens.begin() + static_cast<std::ptrdiff_t>(read_));
  const auto behind = static_cast<std::size_t>(
      session_->tokens() - (usage_.prompt_tokens - static_cast<std::int64_t>(request_.tokens.size())));
  // Adds what steps have added: the last of the prompt, unless it was scored, and all of the answer but its last token.
  if (behind > tokens.size() && tokens.size() < request_.tokens.size()) tokens.push_back(request_.tokens.back());
  for (std::size_t i = 0; tokens.size() < behind && i < answer_.size(); ++i) tokens.push_back(answer_[i]);
  return tokens;
}

}  // namespace hayloft::runtime::serve
