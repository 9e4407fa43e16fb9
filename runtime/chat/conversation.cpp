#include "runtime/chat/conversation.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/chat/special_guard.h"

namespace hayloft::runtime {
namespace {

// Returns whether `longer` goes on behind `tokens`, by one token at least.
bool goes_on(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& longer) {
  return tokens.size() < longer.size() && std::equal(tokens.begin(), tokens.end(), longer.begin());
}

}  // namespace

Conversation::Conversation(Session root, const Tokenizer& tokenizer, ChatTemplate chat, const std::string& system)
    : tokenizer_(tokenizer), chat_(std::move(chat)), root_(std::move(root)), session_(root_.fork()) {
  if (!system.empty()) messages_.push_back({"system", system});
}

// The tokens of the conversation up to the answer to `message`.
std::vector<std::int32_t> Conversation::encode(const std::string& message) const {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", message});
  const auto [text, guard] = render_guarded(chat_, tokenizer_, messages);
  std::vector<std::int32_t> tokens =
      root_.tokens() > 0 ? tokenizer_.encode_continuation(text, guard) : tokenizer_.encode_prompt(text, guard);
  if (tokens.empty()) fail("the chat template made nothing of the message");
  return tokens;
}

std::int64_t Conversation::tokens_with(const std::string& message) const {
  return root_.tokens() + static_cast<std::int64_t>(encode(message).size());
}

std::int32_t Conversation::ask(const std::string& message, const PrefillProgress& progress) {
  const std::vector<std::int32_t> tokens = encode(message);
  const Session* from = &root_;
  std::size_t held = 0;
  if (goes_on(tokens_, tokens)) {
    from = &session_;
    held = tokens_.size();
  } else if (before_answer_ && goes_on(before_answer_->tokens, tokens)) {
    from = &before_answer_->session;
    held = before_answer_->tokens.size();
  }
  const bool rewritten = held < tokens_.size();
  Session next = from->fork();
  next.append(std::span(tokens).subspan(held, tokens.size() - 1 - held), progress);

  session_ = std::move(next);
  read_again_ = rewritten ? static_cast<std::int64_t>(tokens_.size() - held) : 0;
  rewrites_ |= rewritten;
  messages_.push_back({"user", message});
  tokens_.assign(tokens.begin(), tokens.end() - 1);
  prompt_ = tokens;
  before_answer_.reset();
  if (rewrites_) before_answer_.emplace(Point{session_.fork(), tokens_});
  return tokens.back();
}

void Conversation::answered(std::span<const std::int32_t> drawn, const std::string& text) {
  messages_.push_back({"assistant", text});
  tokens_ = prompt_;
  tokens_.insert(tokens_.end(), drawn.begin(), drawn.end());
  tokens_.resize(static_cast<std::size_t>(session_.tokens() - root_.tokens()));
}

}  // namespace hayloft::runtime
