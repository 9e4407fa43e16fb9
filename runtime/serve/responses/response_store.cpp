#include "runtime/serve/responses/response_store.h"

#include <algorithm>

namespace hayloft::runtime::serve::responses {

void ResponseStore::put(const std::string& id, const openai::Json& messages, std::string response) {
  std::string text = openai::dumped(messages);
  const std::lock_guard lock(mutex_);
  kept_.push_back({id, std::move(text), std::move(response)});
  bytes_ += kept_.back().bytes();
  while (bytes_ > most_bytes_ && !kept_.empty()) {
    bytes_ -= kept_.front().bytes();
    kept_.pop_front();
  }
}

openai::Json ResponseStore::find(std::string_view id) const {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, id, &Kept::id);
    if (found == kept_.end()) return nullptr;
    text = found->messages;
  }
  return openai::Json::parse(text);
}

std::string ResponseStore::response(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, id, &Kept::id);
  return found == kept_.end() ? std::string() : found->response;
}

bool ResponseStore::remove(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, id, &Kept::id);
  if (found == kept_.end()) return false;
  bytes_ -= found->bytes();
  kept_.erase(found);
  return true;
}

}  // namespace hayloft::runtime::serve::responses
