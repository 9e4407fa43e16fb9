#include "runtime/serve/responses/response_store.h"

#include <algorithm>

namespace hayloft::runtime::serve::responses {

void ResponseStore::put(const std::string& id, const openai::Json& messages) {
  std::string text = openai::dumped(messages);
  const std::lock_guard lock(mutex_);
  bytes_ += text.size();
  kept_.push_back({id, std::move(text)});
  while (bytes_ > most_bytes_ && !kept_.empty()) {
    bytes_ -= kept_.front().messages.size();
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

bool ResponseStore::remove(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, id, &Kept::id);
  if (found == kept_.end()) return false;
  bytes_ -= found->messages.size();
  kept_.erase(found);
  return true;
}

}  // namespace hayloft::runtime::serve::responses
