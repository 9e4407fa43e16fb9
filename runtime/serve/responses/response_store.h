#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::responses {

// The conversations that responses have ended, for requests that go on from one (previous_response_id): their messages,
// as a chat has them, and the responses themselves, for who asks for one again. What was read of them stays with the
// engine, as of any prompt. Thread-safe; of bounded size, the oldest go first.
class ResponseStore {
 public:
  explicit ResponseStore(std::size_t most_bytes = std::size_t{64} << 20) : most_bytes_(most_bytes) {}

  // response: as JSON.
  void put(const std::string& id, const openai::Json& messages, std::string response);
  openai::Json find(std::string_view id) const;     // null: there is none
  std::string response(std::string_view id) const;  // empty: there is none
  bool remove(std::string_view id);

 private:
  struct Kept {
    std::string id;
    std::string messages;  // as JSON: small, and parsed when they are wanted
    std::string response;
    std::size_t bytes() const { return messages.size() + response.size(); }
  };
  const std::size_t most_bytes_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // the oldest first
  std::size_t bytes_ = 0;
};

}  // namespace hayloft::runtime::serve::responses
