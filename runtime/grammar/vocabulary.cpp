#include "runtime/grammar/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace hayloft::runtime::grammar {
namespace {

// Returns what a token adds to a text, as TextStream has it: behind another token, at whose place it cannot begin the
// text.
std::string bytes_behind(const Tokenizer& tokenizer, std::int32_t before, const std::string& text_before,
                         std::int32_t token) {
  const std::string both = tokenizer.decode({before, token}, false, true);
  return both.substr(std::min(text_before.size(), both.size()));
}

}  // namespace

Vocabulary::Vocabulary(const Tokenizer& tokenizer) {
  const std::int32_t count = tokenizer.vocab_size();
  bytes_.resize(static_cast<std::size_t>(count));
  same_.assign(static_cast<std::size_t>(count), -1);
  const std::vector<std::int32_t> letter = tokenizer.encode("a", false);
  const std::int32_t before = letter.empty() ? 0 : letter.back();
  const std::string text_before = tokenizer.decode({before}, false, true);
  for (std::int32_t token = 0; token < count; ++token) {
    if (tokenizer.is_special(token)) continue;
    bytes_[static_cast<std::size_t>(token)] = bytes_behind(tokenizer, before, text_before, token);
  }
  std::vector<std::int32_t> order(bytes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](std::int32_t token) { return bytes(token).empty(); });
  std::ranges::sort(order,
                    [&](std::int32_t a, std::int32_t b) { return bytes(a) != bytes(b) ? bytes(a) < bytes(b) : a < b; });
  nodes_.push_back({});
  std::vector<std::int32_t> path{0};  // the nodes of the token before, the root first
  std::string_view last;
  for (const std::int32_t token : order) {
    const std::string_view text = bytes(token);
    const auto [end, ignored] = std::mismatch(text.begin(), text.end(), last.begin(), last.end());
    const auto common = static_cast<std::size_t>(end - text.begin());
    std::int32_t beside = common + 1 < path.size() ? path[common + 1] : -1;
    path.resize(common + 1);
    for (std::size_t i = common; i < text.size(); ++i) {
      const auto made = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back({-1, -1, -1, static_cast<unsigned char>(text[i])});
      if (beside >= 0) {
        nodes_[static_cast<std::size_t>(beside)].sibling = made;
      } else {
        nodes_[static_cast<std::size_t>(path.back())].child = made;
      }
      beside = -1;
      path.push_back(made);
    }
    Node& node = nodes_[static_cast<std::size_t>(path.back())];
    same_[static_cast<std::size_t>(token)] = node.tokens;
    node.tokens = token;
    last = text;
  }
}

}  // namespace hayloft::runtime::grammar
