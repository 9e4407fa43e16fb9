#include "runtime/chat/special_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "offload/text/ordered_json.h"

namespace hayloft::runtime {
namespace {

using nlohmann::ordered_json;

// Returns whether `found` holds for some text or key.
template <class Found>
bool any_text(const ordered_json& part, const Found& found) {
  if (part.is_string()) return found(part.get_ref<const std::string&>());
  if (!part.is_structured()) return false;
  const auto items = part.items();
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    return (part.is_object() && found(item.key())) || any_text(item.value(), found);
  });
}

void guard_part(const Tokenizer& tokenizer, std::string_view guard, ordered_json& part) {
  if (part.is_string()) {
    auto& text = part.get_ref<std::string&>();
    text = tokenizer.guarded(text, guard);
  } else if (part.is_object()) {
    ordered_json::object_t guarded;
    guarded.reserve(part.size());
    for (auto& [key, value] : part.items()) {
      guard_part(tokenizer, guard, value);
      guarded.emplace_back(tokenizer.guarded(key, guard), std::move(value));
    }
    part = std::move(guarded);
  } else if (part.is_array()) {
    for (ordered_json& each : part) guard_part(tokenizer, guard, each);
  }
}

}  // namespace

std::string guard_special_tokens(const Tokenizer& tokenizer, std::initializer_list<ordered_json*> parts) {
  const auto any = [&](const auto& found) {
    return std::ranges::any_of(parts, [&](const ordered_json* part) { return any_text(*part, found); });
  };
  if (!any([&](const std::string& text) { return tokenizer.guarded(text, "~").size() > text.size(); })) return {};
  // Printable ASCII, which templates print as it is, within JSON too.
  std::string guard;
  for (int number = 0; guard.empty() || any([&](const std::string& text) { return text.find(guard) != text.npos; });) {
    guard = fmt::format("~guard{}~", number++);
  }
  for (ordered_json* const part : parts) guard_part(tokenizer, guard, *part);
  return guard;
}

GuardedText render_guarded(const ChatTemplate& chat, const Tokenizer& tokenizer,
                           std::span<const ChatMessage> messages) {
  ordered_json array = parse_ordered_json(messages_json(messages));
  std::string guard = guard_special_tokens(tokenizer, {&array});
  return {chat.render_json(array.dump()), std::move(guard)};
}

}  // namespace hayloft::runtime
