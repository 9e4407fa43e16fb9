#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "offload/error.h"
#include "runtime/eval/needle/haystack.h"
#include "runtime/eval/task.h"
#include "runtime/tokenizer/unicode.h"

// The tasks that need nothing but a text.
namespace hayloft::runtime::eval {
namespace {

constexpr std::int64_t passage_tokens = 64;  // of the passage that the model is given

// Stretches of `length` tokens all over the text; they overlap where it is short. They lie where the multiples of the
// golden ratio fall, which spreads any number of them, so that more samples leave the first ones where they are.
class Stretches {
 public:
  Stretches(std::shared_ptr<const EvalText> text, std::int64_t length, std::int64_t ctx_size, int samples)
      : text_(std::move(text)), length_(length), samples_(samples) {
    const auto there = static_cast<std::int64_t>(text_->tokens.size());
    if (length_ > there) {
      fail("--text: has {} tokens, too few for --ctx-size {}; use a longer text or a shorter context", there, ctx_size);
    }
  }

  int samples() const { return samples_; }
  const EvalText& text() const { return *text_; }
  std::span<const std::int32_t> at(int number) const {
    const auto spare = static_cast<std::int64_t>(text_->tokens.size()) - length_;
    const double share = std::fmod(number * 0.6180339887498949, 1.0);
    const auto begin = static_cast<std::int64_t>(share * static_cast<double>(spare));
    return std::span(text_->tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(length_));
  }

 private:
  std::shared_ptr<const EvalText> text_;
  std::int64_t length_;
  int samples_;
};

void require_room(std::int64_t ctx_size, std::int64_t context, std::int64_t least, const char* task) {
  if (context < least) {
    fail("--ctx-size {}: too short for {}, which needs {} tokens", ctx_size, task, ctx_size - context + least);
  }
}

class Repetition : public EvalTask {
 public:
  Repetition(const std::shared_ptr<const EvalText>& text, const Tokenizer& tokenizer, std::int64_t ctx_size,
             int samples, int answer_tokens, std::uint64_t seed)
      : tokenizer_(&tokenizer),
        ctx_size_(ctx_size),
        answer_tokens_(answer_tokens),
        seed_(seed),
        break_(tokenizer.encode("\n\n", false)),
        stretches_(text, context_tokens(text->opening.size()), ctx_size, samples) {}

  const std::string& name() const override { return name_; }
  Measure measure() const override { return Measure::characters; }
  std::int64_t ctx_size() const override { return ctx_size_; }
  int samples() const override { return stretches_.samples(); }

  // The opening, the stretch, an empty line, and the passage's beginning.
  EvalSample sample(int number) override {
    const std::span<const std::int32_t> stretch = stretches_.at(number);
    std::mt19937_64 random(seed_ + static_cast<std::uint64_t>(number));
    const auto whole = static_cast<std::size_t>(passage_tokens + answer_tokens_);
    const std::size_t quarter = (stretch.size() - whole) / 4;
    const std::size_t at = quarter + draw(random, 2 * quarter + 1);
    const auto passage = stretch.subspan(at, static_cast<std::size_t>(passage_tokens));
    const auto rest = stretch.subspan(at + passage.size(), static_cast<std::size_t>(answer_tokens_));

    EvalSample sample;
    sample.answer_tokens = answer_tokens_;
    sample.prompt = stretches_.text().opening;
    sample.prompt.insert(sample.prompt.end(), stretch.begin(), stretch.end());
    sample.prompt.insert(sample.prompt.end(), break_.begin(), break_.end());
    sample.prompt.insert(sample.prompt.end(), passage.begin(), passage.end());
    sample.expected = {tokenizer_->decode(std::vector<std::int32_t>(rest.begin(), rest.end()), false, true)};
    return sample;
  }

  double score(std::string_view answer, const EvalSample& sample) const override {
    const std::string& text = sample.expected.front();
    const auto differ = std::mismatch(answer.begin(), answer.end(), text.begin(), text.end()).first;
    const std::string_view same = answer.substr(0, static_cast<std::size_t>(differ - answer.begin()));
    int characters = 0;
    for (std::size_t at = 0; at < same.size() && utf8_at(same, at).status == Utf8Status::ok; ++characters) {
      at += utf8_at(same, at).length;
    }
    return characters;
  }

 private:
  std::int64_t context_tokens(std::size_t opening) const {
    const std::int64_t around = static_cast<std::int64_t>(opening + break_.size()) + passage_tokens + answer_tokens_;
    require_room(ctx_size_, ctx_size_ - around, 2 * (passage_tokens + answer_tokens_), "repetition");
    return ctx_size_ - around;
  }

  std::string name_ = "repetition";
  const Tokenizer* tokenizer_;
  std::int64_t ctx_size_;
  int answer_tokens_;
  std::uint64_t seed_;
  std::vector<std::int32_t> break_;
  Stretches stretches_;
};

class Perplexity : public EvalTask {
 public:
  Perplexity(const std::shared_ptr<const EvalText>& text, std::int64_t ctx_size, int samples, int scored)
      : ctx_size_(ctx_size),
        scored_(scored),
        stretches_(text, stretch_tokens(text->opening.size()), ctx_size, samples) {}

  const std::string& name() const override { return name_; }
  Measure measure() const override { return Measure::perplexity; }
  std::int64_t ctx_size() const override { return ctx_size_; }
  int samples() const override { return stretches_.samples(); }

  EvalSample sample(int number) override {
    const std::span<const std::int32_t> stretch = stretches_.at(number);
    const auto context = stretch.first(stretch.size() - static_cast<std::size_t>(scored_));
    EvalSample sample;
    sample.prompt = stretches_.text().opening;
    sample.prompt.insert(sample.prompt.end(), context.begin(), context.end());
    sample.forced.assign(stretch.end() - scored_, stretch.end());
    return sample;
  }

 private:
  std::int64_t stretch_tokens(std::size_t opening) const {
    const std::int64_t stretch = ctx_size_ - static_cast<std::int64_t>(opening);
    require_room(ctx_size_, stretch, scored_ + 2, "perplexity");
    return stretch;
  }

  std::string name_ = "perplexity";
  std::int64_t ctx_size_;
  int scored_;
  Stretches stretches_;
};

}  // namespace

std::shared_ptr<const EvalText> read_eval_text(std::string_view text, const Tokenizer& tokenizer) {
  return std::make_shared<EvalText>(EvalText{tokenizer.encode("", true), tokenizer.encode(text, false)});
}

std::unique_ptr<EvalTask> make_repetition(const std::shared_ptr<const EvalText>& text, const Tokenizer& tokenizer,
                                          std::int64_t ctx_size, int samples, int answer_tokens, std::uint64_t seed) {
  return std::make_unique<Repetition>(text, tokenizer, ctx_size, samples, answer_tokens, seed);
}

std::unique_ptr<EvalTask> make_perplexity(const std::shared_ptr<const EvalText>& text, std::int64_t ctx_size,
                                          int samples, int scored) {
  return std::make_unique<Perplexity>(text, ctx_size, samples, scored);
}

}  // namespace hayloft::runtime::eval
