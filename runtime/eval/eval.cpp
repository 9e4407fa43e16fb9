#include "runtime/eval/eval.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "gpu/make_backend.h"
#include "offload/clock.h"
#include "offload/error.h"
#include "runtime/eval/meter.h"
#include "runtime/eval/metrics.h"
#include "runtime/eval/reach.h"
#include "runtime/fidelity/attention_statement.h"
#include "runtime/fidelity/fidelity_control.h"

namespace hayloft::runtime::eval {
namespace {

constexpr std::size_t question_tokens = 256;  // at a prompt's end that are read exactly

// The next token to decode, or nothing when the answer has ended.
using Next = std::function<std::optional<std::int32_t>(const std::vector<float>& logits)>;

// Keeps what dense attention said behind a prompt: one entry per step.
struct Reference {
  std::vector<std::int32_t> tokens;  // that came next
  std::vector<std::vector<float>> logits;
  EvalRow row;  // what the steps took
};

// A prompt but for its last token: what has been read of it, and what each answer reads in a fork of its own, so that
// no more than one fork is there at a time.
struct Asked {
  Session& read;
  std::span<const std::int32_t> rest;
};

// Holds a way to read prompts, and what it has read of what the task's samples have in common.
struct Reading {
  SessionOptions session;
  std::string prefill;  // prefill_label()
  std::optional<Session> shared;
  double shared_seconds = 0;
  std::map<SharedMethod, double> shared_prepare_seconds;
};

class Run {
 public:
  Run(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena, EvalTask& task, const EvalOptions& options,
      const EvalHooks& hooks)
      : model_(model), tokenizer_(tokenizer), arena_(arena), task_(task), options_(options), hooks_(hooks) {
    if (options.methods.empty()) fail("--attn: name at least one attention method");
    if (options.samples < 1) fail("--samples {}: at least one is needed", options.samples);
    const SessionOptions session = session_at(options.session, task.ctx_size());
    for (const PrefillOptions& prefill : options.prefills.empty() ? std::vector{session.prefill} : options.prefills) {
      Reading& reading = readings_.emplace_back();
      reading.session = session;
      reading.session.prefill = prefill;
      reading.prefill = prefill_label(prefill);
    }
    dense_ = make_method({}, model.config().head_dim);
    host_ = gpu::make_cpu_backend(model.backend().threads());
    for (const MethodOptions& method : options.methods) {
      methods_.push_back(make_method(method, model.config().head_dim));
    }
  }

  void run() {
    if (!options_.by_method) return answer_all(methods_);
    for (const SharedMethod& method : methods_) answer_all({method});
  }

 private:
  void answer_all(const std::vector<SharedMethod>& methods) {
    const int samples = std::min(options_.samples, task_.samples());
    for (int number = 0; number < samples; ++number) {
      std::vector<std::vector<SharedMethod>> missing(readings_.size());
      for (std::size_t i = 0; i < readings_.size(); ++i) {
        for (const SharedMethod& method : methods) {
          if (!hooks_.done || !hooks_.done(task_, number, readings_[i].prefill, method->options()))
            missing[i].push_back(method);
        }
      }
      const auto last =
          std::ranges::find_if(missing.rbegin(), missing.rend(), [](const auto& of) { return !of.empty(); });
      if (last == missing.rend()) continue;
      const EvalSample sample = task_.sample(number);
      std::optional<Reference> reference;
      observed_ = false;
      // The reference stands behind the first way of reading.
      const bool refers = !sample.forced.empty() || options_.agreement;
      for (std::size_t i = 0; i < readings_.size(); ++i) {
        if (!missing[i].empty() || (i == 0 && refers)) answer(number, sample, readings_[i], missing[i], reference);
      }
    }
  }

  // Answers by the methods behind what `reading` reads. The first such call of a sample makes its reference, where it
  // has one.
  void answer(int number, const EvalSample& sample, Reading& reading, const std::vector<SharedMethod>& methods,
              std::optional<Reference>& reference) {
    if (hooks_.sample_started) {
      hooks_.sample_started(task_, number, static_cast<std::int64_t>(sample.prompt.size()));
    }
    const Clock::time_point start = Clock::now();
    std::optional<Session> own;
    if (sample.shared_tokens > 0) {
      read_shared(sample, methods, reading);
    } else {
      own.emplace(read(sample.prompt, methods, reading));
    }
    Asked asked{own ? *own : *reading.shared, rest_of(sample)};
    const double prefill_seconds = sample.shared_tokens > 0 ? reading.shared_seconds : seconds_since(start);

    const bool first = &reading == &readings_.front();
    if (first && (!sample.forced.empty() || options_.agreement)) reference = refer(asked, sample);
    for (const SharedMethod& method : methods) {
      const Clock::time_point before = Clock::now();
      asked.read.prepare(*method, hooks_.prepare);
      const double prepare_seconds = seconds_since(before) + reading.shared_prepare_seconds[method];
      EvalRow row = first && reference && method->options().name == "dense"
                        ? row_of(*reference, sample)
                        : answer_by(method, asked, sample, reference ? &*reference : nullptr);
      row.task = task_.name();
      row.sample = number;
      row.ctx_size = task_.ctx_size();
      row.prompt_tokens = static_cast<std::int64_t>(sample.prompt.size());
      row.depth = sample.depth;
      row.block_tokens = reading.session.cache.block_tokens;
      row.prefill = reading.prefill;
      const PrefillOptions& prefill = reading.session.prefill;
      row.read_whole = prefill.kind == PrefillOptions::Kind::sparse
                           ? !left_out(asked.read.prefill_read())
                           : prefill.kind != PrefillOptions::Kind::exact && reads_all(prefill, row.prompt_tokens);
      row.attn = method->options();
      row.products = model_.backend().products();
      row.measure = task_.measure();
      row.expected = sample.expected;
      row.prefill_seconds = prefill_seconds;
      row.prepare_seconds += prepare_seconds;
      if (hooks_.row) hooks_.row(row);
    }
  }

  // Reads what the task's samples share, and builds what the methods keep of it, once.
  void read_shared(const EvalSample& sample, const std::vector<SharedMethod>& methods, Reading& reading) const {
    std::optional<Session>& shared = reading.shared;
    if (!shared) {
      const Clock::time_point start = Clock::now();
      shared.emplace(model_, arena_, reading.session);
      for (const auto& method : methods_) shared->attach_method(*method);
      shared->append(std::span(sample.prompt).first(static_cast<std::size_t>(sample.shared_tokens)), hooks_.prefill);
      reading.shared_seconds = seconds_since(start);
    }
    for (const SharedMethod& method : methods) {
      const Clock::time_point start = Clock::now();
      shared->prepare(*method, hooks_.prepare);
      // Nothing is left to be done when it was there already.
      double& seconds = reading.shared_prepare_seconds[method];
      seconds = std::max(seconds, seconds_since(start));
    }
  }

  // Returns what of the prompt stands behind the shared part, but for the last token.
  static std::span<const std::int32_t> rest_of(const EvalSample& sample) {
    if (sample.shared_tokens == 0) return {};
    const auto rest = std::span(sample.prompt).subspan(static_cast<std::size_t>(sample.shared_tokens));
    return rest.first(rest.size() - 1);
  }

  // The prompt but for its last token.
  Session read(const std::vector<std::int32_t>& prompt, const std::vector<SharedMethod>& methods,
               const Reading& reading) const {
    Session context(model_, arena_, reading.session);
    for (const SharedMethod& method : methods) context.attach_method(*method);
    const auto before = std::span(prompt).first(prompt.size() - 1);
    const std::size_t question = std::min(question_tokens, before.size());
    context.append(before.first(before.size() - question), hooks_.prefill);
    context.set_prefill({});
    context.append(before.last(question));
    return context;
  }

  EvalRow answer_by(const SharedMethod& method, const Asked& asked, const EvalSample& sample,
                    const Reference* reference) {
    EvalRow row;
    const std::int64_t length =
        sample.shared_tokens > 0 ? sample.shared_tokens : static_cast<std::int64_t>(sample.prompt.size());
    row.window = method->window(length);
    row.k = method->recall_k(length);
    if (!sample.forced.empty()) {
      row.score = task_.score_of_loss(follow(asked, method, sample.prompt.back(), *reference, row), sample);
      return row;
    }
    std::vector<std::int32_t> answer;
    if (options_.drafts && method->options().name == "dense") {
      answer = decode_by_drafts(asked, sample, row);
    } else {
      decode(asked, method, sample.prompt.back(), row, [&](const std::vector<float>& logits) {
        answer.push_back(asked.read.agreed(argmax(logits)));
        return goes_on(answer, sample);
      });
    }
    grade(std::move(answer), sample, row);
    if (reference) {
      EvalRow led;
      follow(asked, method, sample.prompt.back(), *reference, led);
      row.top1 = led.top1;
      row.kl = led.kl;
      row.accepted_shares = led.accepted_shares;
    }
    return row;
  }

  Reference refer(const Asked& asked, const EvalSample& sample) {
    Reference reference;
    decode(asked, dense_, sample.prompt.back(), reference.row, [&](const std::vector<float>& logits) {
      const std::size_t step = reference.logits.size();
      reference.logits.push_back(logits);
      reference.tokens.push_back(sample.forced.empty() ? asked.read.agreed(argmax(logits)) : sample.forced[step]);
      if (sample.forced.empty()) return goes_on(reference.tokens, sample);
      return step + 1 == sample.forced.size() ? std::nullopt : std::optional(sample.forced[step]);
    });
    return reference;
  }

  // Dense attention's own row.
  EvalRow row_of(const Reference& reference, const EvalSample& sample) const {
    EvalRow row = reference.row;
    row.top1 = 1;
    row.kl = 0;
    row.accepted_shares = accepted_shares(std::vector<bool>(reference.tokens.size(), true), drafted_tokens);
    if (sample.forced.empty()) {
      grade(reference.tokens, sample, row);
      return row;
    }
    double losses = 0;
    for (std::size_t step = 0; step < reference.tokens.size(); ++step) {
      losses += negative_log_likelihood(reference.logits[step], reference.tokens[step]);
    }
    row.score = task_.score_of_loss(losses / static_cast<double>(reference.tokens.size()), sample);
    return row;
  }

  // Leads a method along the reference's tokens and enters how far it agrees; returns the mean negative log-likelihood
  // of them.
  double follow(const Asked& asked, const SharedMethod& method, std::int32_t token, const Reference& reference,
                EvalRow& row) {
    double losses = 0, divergences = 0;
    std::vector<bool> same;
    std::size_t step = 0;
    decode(asked, method, token, row, [&](const std::vector<float>& logits) {
      const std::int32_t expected = reference.tokens[step];
      losses += negative_log_likelihood(logits, expected);
      divergences += divergence(reference.logits[step], logits);
      same.push_back(argmax(logits) == argmax(reference.logits[step]));
      ++step;
      return step == reference.tokens.size() ? std::nullopt : std::optional(expected);
    });
    const auto steps = static_cast<double>(step);
    row.top1 = static_cast<double>(std::ranges::count(same, true)) / steps;
    row.accepted_shares = accepted_shares(same, drafted_tokens);
    row.kl = divergences / steps;
    return losses / steps;
  }

  // Forks what has been read, and reads what is left of the prompt, to be decoded by `method`.
  Session begin(const Asked& asked, const SharedMethod& method, EvalRow& row) const {
    Session session = asked.read.fork();
    if (!asked.rest.empty()) {
      session.set_prefill({});
      session.append(asked.rest);
      const Clock::time_point start = Clock::now();
      session.prepare(*method, hooks_.prepare);
      row.prepare_seconds = seconds_since(start);
    }
    if (const MethodState* state = session.state(*method)) row.state_bytes = state->bytes();
    session.set_method(method);
    return session;
  }

  // Answers by dense attention, several tokens a pass.
  std::vector<std::int32_t> decode_by_drafts(const Asked& asked, const EvalSample& sample, EvalRow& row) {
    Session session = begin(asked, dense_, row);
    if (options_.drafts->self) {
      const SharedMethod drafts = make_method(*options_.drafts->self, model_.config().head_dim);
      session.prepare(*drafts, hooks_.prepare);
      session.set_draft_method(drafts);
    }
    Drafting drafting(*options_.drafts);
    drafting.read(sample.prompt);
    Sampler greedy{{}};
    std::vector<std::int32_t> answer;
    double seconds = 0;
    for (bool more = true; more;) {
      const Clock::time_point start = Clock::now();
      drafting.next(session, greedy, sample.answer_tokens - static_cast<int>(answer.size()), [&](std::int32_t token) {
        answer.push_back(token);
        return more = goes_on(answer, sample).has_value();
      });
      seconds += seconds_since(start);
      if (hooks_.step) hooks_.step();
    }
    row.drafts = drafting.figures();
    enter_costs(session, seconds, row);
    row.link_bytes_per_token = static_cast<double>(row.drafts->link_bytes) / static_cast<double>(row.steps);
    return answer;
  }

  // Decodes from `token` on, as `next` says, and enters what it took, and where the row has a k how near it came to
  // exact attention.
  void decode(const Asked& asked, const SharedMethod& method, std::int32_t token, EvalRow& row, const Next& next) {
    Session session = begin(asked, method, row);
    double seconds = 0, watched = 0;
    std::shared_ptr<FidelityControl> kept;
    const auto meter = std::make_shared<Meter>(*host_, session.tokens(), options_.fidelity_steps);
    cluster::Communicator& ranks = options_.session.peers();
    if (!ranks.several()) {  // over ranks nobody has all of the keys to measure by
      if (method->options().name == "auto" && options_.auto_fidelity > 0) {
        kept = std::make_shared<FidelityControl>(method->options(), model_.config().head_dim, options_.auto_fidelity);
        session.set_method(kept->method());
        session.add_observer(kept);
      }
      if (row.k > 0 && options_.fidelity_steps > 0) session.add_observer(std::make_shared<Clocked>(meter, watched));
    }
    if (options_.observer && !observed_) session.add_observer(std::make_shared<Clocked>(options_.observer, watched));
    observed_ = true;
    const cluster::Ledger before = ranks.ledger();
    for (std::optional<std::int32_t> now = token; now;) {
      const Clock::time_point start = Clock::now();
      const std::vector<float> logits = session.step(*now);
      if (kept && kept->update()) session.set_method(kept->method());
      seconds += seconds_since(start);
      if (hooks_.step) hooks_.step();
      now = next(logits);
    }
    enter_costs(session, seconds - watched, row);
    const auto steps = static_cast<double>(row.steps);
    const cluster::Ledger::Entry network = ranks.ledger().since(before).total();
    row.network_messages_per_token = static_cast<double>(network.messages) / steps;
    row.network_sent_per_token = static_cast<double>(network.sent) / steps;
    row.network_received_per_token = static_cast<double>(network.received) / steps;
    meter->enter(row);
  }

  // Enters what the session's steps took.
  static void enter_costs(const Session& session, double seconds, EvalRow& row) {
    row.steps = session.steps();
    row.rows = rows_attended_to(session);
    const auto steps = static_cast<double>(row.steps);
    row.ms_per_token = seconds * 1000 / steps;
    const Counters& counters = session.counters();
    row.attended_share = session.attended_share();
    row.elements_per_token = static_cast<double>(counters.elements) / steps;
    row.positions_scored_per_token = static_cast<double>(counters.positions_scored) / steps;
    row.link_bytes_per_token = static_cast<double>(counters.total(Place::link)) / steps;
    row.near_bytes_per_token = static_cast<double>(counters.total(Place::near)) / steps;
  }

  bool ends(std::int32_t token) const {
    const auto& eos = model_.config().eos_tokens;
    return std::find(eos.begin(), eos.end(), token) != eos.end();
  }

  std::optional<std::int32_t> goes_on(const std::vector<std::int32_t>& answer, const EvalSample& sample) const {
    const bool over = ends(answer.back()) || static_cast<int>(answer.size()) == sample.answer_tokens ||
                      task_.ended(tokenizer_.decode(answer));
    return over ? std::nullopt : std::optional(answer.back());
  }

  void grade(std::vector<std::int32_t> answer, const EvalSample& sample, EvalRow& row) const {
    if (ends(answer.back())) answer.pop_back();
    const std::string text = tokenizer_.decode(answer, false, true);
    row.score = task_.score(text, sample);
    row.prediction = task_.cleaned(text);
  }

  const Model& model_;
  const Tokenizer& tokenizer_;
  offload::Arena& arena_;
  EvalTask& task_;
  const EvalOptions& options_;
  const EvalHooks& hooks_;
  SharedMethod dense_;
  std::unique_ptr<gpu::Backend> host_;  // for the meter
  std::vector<SharedMethod> methods_;
  std::vector<Reading> readings_;
  bool observed_ = false;  // an answer to this sample
};

}  // namespace

void run_eval(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena, EvalTask& task,
              const EvalOptions& options, const EvalHooks& hooks) {
  Run(model, tokenizer, arena, task, options, hooks).run();
}

}  // namespace hayloft::runtime::eval
