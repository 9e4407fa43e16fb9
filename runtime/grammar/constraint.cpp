#include "runtime/grammar/constraint.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "offload/error.h"

namespace hayloft::runtime::grammar {
namespace {

constexpr std::size_t kMostMasks = 512;
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

}  // namespace

class GrammarFilter : public TokenFilter {
 public:
  GrammarFilter(std::shared_ptr<Constraint> shared, const Tokenizer& tokenizer, const Vocabulary& vocabulary,
                std::vector<std::int32_t> ends)
      : shared_(std::move(shared)), tokenizer_(tokenizer), vocabulary_(vocabulary), ends_(std::move(ends)) {
    if (shared_->holding_.behind.empty()) state_ = shared_->recogniser_.start();
  }

  void apply(std::span<float> logits) override {
    if (state_ == Recogniser::dead) return forbid_early_end(logits);
    const std::lock_guard lock(shared_->mutex_);
    const auto& mask = shared_->mask(state_, vocabulary_);
    std::vector<std::pair<std::size_t, float>> ends;
    for (const std::int32_t end : ends_) {
      const auto at = static_cast<std::size_t>(end);
      if (at >= logits.size()) continue;
      if (may_end_with(end)) {
        ends.emplace_back(at, logits[at]);
      } else if (tokenizer_.is_special(end)) {  // it may be any token of the grammar, but does not go on
        ends.emplace_back(at, kForbidden);
      }
    }
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (i >= mask.size() || !mask[i]) logits[i] = kForbidden;
    }
    for (const auto& [at, logit] : ends) logits[at] = logit;
  }

  void accept(std::int32_t token) override {
    if (std::ranges::find(ends_, token) != ends_.end()) return;
    const bool special = tokenizer_.is_special(token);
    if (state_ == Recogniser::dead) return look_for(special ? tokenizer_.decode({token}, true) : text_of(token));
    const std::lock_guard lock(shared_->mutex_);
    const Recogniser::State as_token = shared_->recogniser_.next_token(state_, token);
    if (special && as_token == Recogniser::dead) return;
    const Recogniser::State as_text = special ? Recogniser::dead : state_behind(text_of(token));
    go_on(shared_->recogniser_.either(as_token, as_text));
  }

  bool finished() const override {
    if (state_ == Recogniser::dead || !shared_->holding_.once) return false;
    const std::lock_guard lock(shared_->mutex_);
    return shared_->recogniser_.must_end(state_);
  }

 private:
  std::string text_of(std::int32_t token) const {
    return token >= 0 && token < vocabulary_.size() ? vocabulary_.bytes(token) : std::string();
  }

  // An answer does not end before its grammar has held.
  void forbid_early_end(std::span<float> logits) const {
    if (!shared_->holding_.once) return;
    for (const std::int32_t end : ends_) {
      if (static_cast<std::size_t>(end) < logits.size()) logits[static_cast<std::size_t>(end)] = kForbidden;
    }
  }

  // While the grammar does not hold yet.
  void look_for(const std::string& text) {
    const std::string& behind = shared_->holding_.behind;
    seen_ += text;
    const std::size_t at = seen_.find(behind);
    if (at == std::string::npos) {
      seen_.erase(0, seen_.size() - std::min(seen_.size(), behind.size() - 1));
      return;
    }
    const std::string rest = seen_.substr(at + behind.size());
    seen_.clear();
    state_ = shared_->recogniser_.start();
    const std::lock_guard lock(shared_->mutex_);
    go_on(state_behind(rest));
  }

  // The caller of these holds the mutex.
  bool may_end_with(std::int32_t end) const {
    Recogniser& recogniser = shared_->recogniser_;
    if (recogniser.may_end(state_)) return true;
    const Recogniser::State last = recogniser.next_token(state_, end);
    return last != Recogniser::dead && recogniser.may_end(last);
  }

  // Returns the state behind a text, in which no byte is a token's mark.
  Recogniser::State state_behind(const std::string& text) const {
    if (text.find(static_cast<char>(kTokenMark)) != std::string::npos) return Recogniser::dead;
    Recogniser::State state = state_;
    for (const char c : text) {
      if (state != Recogniser::dead) state = shared_->recogniser_.next(state, static_cast<unsigned char>(c));
    }
    return state;
  }

  // Tokens that the mask has let pass are of the grammar; the rest of one that began before it held may be none.
  void go_on(Recogniser::State state) {
    state_ = state;
    if (state_ == Recogniser::dead) fail("the answer went on by a token that its grammar does not have");
    if (!shared_->holding_.once && shared_->recogniser_.must_end(state_)) state_ = Recogniser::dead;
  }

  const std::shared_ptr<Constraint> shared_;
  const Tokenizer& tokenizer_;
  const Vocabulary& vocabulary_;
  const std::vector<std::int32_t> ends_;
  Recogniser::State state_ = Recogniser::dead;  // dead: it does not hold now
  std::string seen_;                            // the end of what came before it holds
};

std::unique_ptr<TokenFilter> Constraint::begin(const Tokenizer& tokenizer, const Vocabulary& vocabulary,
                                               std::vector<std::int32_t> ends) {
  return std::make_unique<GrammarFilter>(shared_from_this(), tokenizer, vocabulary, std::move(ends));
}

const Constraint::Mask& Constraint::mask(Recogniser::State state, const Vocabulary& vocabulary) {
  const auto found = masks_.find(state);
  if (found != masks_.end()) return found->second;
  if (masks_.size() >= kMostMasks) masks_.clear();
  Mask mask(static_cast<std::size_t>(vocabulary.size()));
  const std::vector<Vocabulary::Node>& nodes = vocabulary.nodes();
  std::vector<std::pair<std::int32_t, Recogniser::State>> open;  // nodes, and the states before their bytes
  if (nodes.front().child >= 0) open.emplace_back(nodes.front().child, state);
  while (!open.empty()) {
    const auto [at, before] = open.back();
    open.pop_back();
    const Vocabulary::Node& node = nodes[static_cast<std::size_t>(at)];
    if (node.sibling >= 0) open.emplace_back(node.sibling, before);
    if (node.byte == kTokenMark) continue;
    const Recogniser::State behind = recogniser_.next(before, node.byte);
    if (behind == Recogniser::dead) continue;
    for (std::int32_t token = node.tokens; token >= 0; token = vocabulary.same(token)) {
      mask[static_cast<std::size_t>(token)] = true;
    }
    if (node.child >= 0) open.emplace_back(node.child, behind);
  }
  if (recogniser_.next(state, kTokenMark) != Recogniser::dead) {
    for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
      if (recogniser_.next_token(state, token) != Recogniser::dead) mask[static_cast<std::size_t>(token)] = true;
    }
  }
  return masks_.emplace(state, std::move(mask)).first->second;
}

}  // namespace hayloft::runtime::grammar
