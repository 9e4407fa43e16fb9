#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/chat/chat_template.h"
#include "runtime/decode/session.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime {

// A conversation with a model: its messages, and a session that has read them as the model's chat template writes them.
// A new message costs only what the template adds behind the tokens that are in the session already. Where
// a template rewrites earlier messages (some leave the reasoning out of earlier answers), the session goes back to
// where the texts part, and from then on keeps a fork at the end of each prompt for that. Not thread-safe; the
// tokenizer, and the model and arena of the session, must outlive it.
class Conversation {
 public:
  // root: empty, or behind a context that the conversation is about. system: what the template is given as the first
  // message; none when it is empty.
  Conversation(Session root, const Tokenizer& tokenizer, ChatTemplate chat, const std::string& system = "");

  // Returns how many tokens the session will hold once `message` of the user and the beginning of the answer are read.
  std::int64_t tokens_with(const std::string& message) const;

  // Reads the user's message up to the beginning of the answer, but for its last token, which is returned: decode from
  // it by session(). If it throws, everything is as before. The session is another one after each message, with
  // counters of its own and without observers.
  std::int32_t ask(const std::string& message, const PrefillProgress& progress = {});

  // The answer: what was drawn from session(), in order, the last of it perhaps not gone through the session, and its
  // text.
  void answered(std::span<const std::int32_t> drawn, const std::string& text);

  Session& session() { return session_; }
  // The tokens behind the root up to the answer to the last message.
  std::span<const std::int32_t> prompt() const { return prompt_; }
  std::int64_t read_again() const { return read_again_; }  // tokens that the last message made the session read again

 private:
  struct Point {
    Session session;
    std::vector<std::int32_t> tokens;  // that it holds behind the root
  };
  std::vector<std::int32_t> encode(const std::string& message) const;

  const Tokenizer& tokenizer_;
  ChatTemplate chat_;
  std::vector<ChatMessage> messages_;
  Session root_;
  Session session_;
  std::vector<std::int32_t> tokens_;  // that session_ holds behind the root
  std::vector<std::int32_t> prompt_;  // all that was asked for last, behind the root
  std::optional<Point> before_answer_;
  bool rewrites_ = false;  // the template has been seen to rewrite earlier messages
  std::int64_t read_again_ = 0;
};

}  // namespace hayloft::runtime
