#include "runtime/eval/needle/needle.h"

#include <algorithm>
#include <optional>

#include "offload/clock.h"
#include "offload/error.h"
#include "offload/format.h"
#include "runtime/eval/needle/context.h"
#include "runtime/fidelity/recall.h"

namespace hayloft::runtime {
namespace {

constexpr int answer_tokens = 12;      // at most: one digit a token, a space, and what ends the number
constexpr int smallest_context = 256;  // tokens: room for the opening and a needle

bool answer_ended(const std::string& text) {
  const std::size_t begin = text.find_first_of("0123456789");
  return begin != std::string::npos && text.find_first_not_of("0123456789", begin) != std::string::npos;
}

// The mean recall of every step and global layer, and the time that it takes to measure.
class RecallMeter : public StepObserver {
 public:
  RecallMeter(std::int64_t k, index::SelectPer per) : k_(k), per_(per) {}

  bool wants(int, std::int64_t) override { return true; }
  void see(const ObservedStep& step) override {
    const Clock::time_point start = Clock::now();
    sum_ += recall(step.backend, step.cache, step.q, step.query_heads, step.trace, k_, per_);
    ++count_;
    seconds_ += seconds_since(start);
  }
  double seconds() const { return seconds_; }
  std::optional<double> mean() const {
    return count_ > 0 ? std::optional(sum_ / static_cast<double>(count_)) : std::nullopt;
  }

 private:
  std::int64_t k_;
  index::SelectPer per_;
  double sum_ = 0;
  std::int64_t count_ = 0;
  double seconds_ = 0;
};

class Run {
 public:
  Run(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena, const NeedleOptions& options,
      const NeedleHooks& hooks)
      : model_(model), tokenizer_(tokenizer), arena_(arena), options_(options), hooks_(hooks) {
    if (options.ctx_sizes.empty()) fail("--ctx-size: name at least one context length");
    if (options.methods.empty()) fail("--attn: name at least one attention method");
    if (options.depths < 1) fail("--depths {}: at least one needle is needed", options.depths);
    for (const MethodOptions& method : options.methods)
      methods_.push_back(make_method(method, model.config().head_dim));
    for (const std::int64_t length : options.ctx_sizes) {
      if (length < smallest_context) fail("--ctx-size {}: needs at least {} tokens", length, smallest_context);
      const std::uint64_t needed = host_bytes(model.config(), options.session.cache, length);
      const std::uint64_t left = arena.budget_bytes() - arena.used_bytes();
      if (needed > left) {
        fail("--ctx-size {}: needs {} of host memory for K and V, and {} are left; lower it or raise --host-memory",
             length, format_bytes(needed), format_bytes(left));
      }
    }
  }

  std::vector<NeedleRow> run() {
    for (const std::int64_t length : options_.ctx_sizes) {
      std::mt19937_64 random(options_.seed + static_cast<std::uint64_t>(length));
      const std::vector<Needle> needles = make_needles(options_.depths, 6, random);
      Filler filler(options_.haystack.empty() ? make_grammar(random()) : make_text(options_.haystack));
      if (options_.one_needle) {
        for (const Needle& needle : needles) ask_in_context(filler, {needle}, length);
      } else {
        ask_in_context(filler, needles, length);
      }
    }
    return std::move(rows_);
  }

 private:
  void ask_in_context(Filler& filler, const std::vector<Needle>& needles, std::int64_t length) {
    if (hooks_.context_started) hooks_.context_started(length);
    const std::vector<std::int32_t> context_tokens = needle_context(tokenizer_, filler, needles, length);
    const Clock::time_point start = Clock::now();
    Session context(model_, arena_, options_.session);
    for (const auto& method : methods_) context.attach_method(*method);
    context.append(context_tokens, hooks_.prefill);
    const double prefill_seconds = seconds_since(start);
    for (const auto& method : methods_) {
      const Clock::time_point before = Clock::now();
      context.prepare(*method, hooks_.prepare);
      const double prepare_seconds = seconds_since(before);
      for (const Needle& needle : needles) {
        NeedleRow row = ask(context, method, needle);
        row.prefill_seconds = prefill_seconds;
        row.prepare_seconds = prepare_seconds;
        if (const MethodState* state = context.state(*method)) row.state_bytes = state->bytes();
        if (hooks_.row) hooks_.row(row);
        rows_.push_back(std::move(row));
      }
    }
  }

  NeedleRow ask(const Session& context, const SharedMethod& method, const Needle& needle) {
    const std::int64_t length = context.tokens();
    NeedleRow row;
    row.attn = method->options();
    row.tokens = length;
    row.depth = needle.depth;
    row.expected = needle.digits;
    row.window = method->window(length);
    row.k = method->recall_k(length);

    Session session = context.fork();
    session.set_method(method);
    session.set_prefill({});  // the question attends exactly, like its last token by `dense`
    const auto meter = std::make_shared<RecallMeter>(row.k, selects_per(method->options()));
    if (row.k > 0) session.add_observer(meter);
    const std::vector<std::int32_t> question = tokenizer_.encode(needle.question(), false);
    session.append(std::span(question).first(question.size() - 1));
    const Clock::time_point start = Clock::now();
    std::int32_t token = question.back();
    std::vector<std::int32_t> answer;
    Sampler greedy(SamplerOptions{});
    while (static_cast<int>(answer.size()) < answer_tokens && !answer_ended(tokenizer_.decode(answer))) {
      token = session.next(token, greedy);
      answer.push_back(token);
    }
    const double steps = static_cast<double>(session.steps());
    row.decode_ms_per_token = (seconds_since(start) - meter->seconds()) * 1000 / steps;
    row.link_bytes_per_token = static_cast<double>(session.counters().total(Place::link)) / steps;
    row.near_bytes_per_token = static_cast<double>(session.counters().total(Place::near)) / steps;
    row.positions_scored_per_token = static_cast<double>(session.counters().positions_scored) / steps;
    row.recall = meter->mean();
    row.answer = digits_of_answer(tokenizer_.decode(answer));
    row.hit = row.answer == row.expected;
    return row;
  }

  const Model& model_;
  const Tokenizer& tokenizer_;
  offload::Arena& arena_;
  const NeedleOptions& options_;
  const NeedleHooks& hooks_;
  std::vector<SharedMethod> methods_;
  std::vector<NeedleRow> rows_;
};

}  // namespace

std::vector<NeedleRow> run_needle(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena,
                                  const NeedleOptions& options, const NeedleHooks& hooks) {
  return Run(model, tokenizer, arena, options, hooks).run();
}

}  // namespace hayloft::runtime
