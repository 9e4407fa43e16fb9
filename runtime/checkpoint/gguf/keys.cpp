#include "runtime/checkpoint/gguf/keys.h"

#include "offload/error.h"

namespace hayloft::runtime::gguf {

std::string Keys::key(std::string_view name) const {
  std::string whole = prefix_ + std::string(name);
  read_.insert(whole);
  return whole;
}

bool Keys::is_list(std::string_view name) const {
  const Value* value = find(name);
  return value && std::get_if<Array>(value);
}

std::int64_t Keys::integer(std::string_view name, std::int64_t least, std::int64_t most) const {
  return metadata_.integer(key(name), least, most);
}

std::int64_t Keys::integer_or(std::string_view name, std::int64_t absent, std::int64_t least, std::int64_t most) const {
  return metadata_.integer_or(key(name), absent, least, most);
}

bool Keys::is_zero(std::string_view name) const {
  const Value* value = find(name);
  if (!value) return false;
  if (const auto* x = std::get_if<double>(value)) return *x == 0;
  if (const auto* x = std::get_if<std::int64_t>(value)) return *x == 0;
  const auto* x = std::get_if<std::uint64_t>(value);
  return x && *x == 0;
}

double Keys::nonzero_or(std::string_view name, double absent) const {
  return is_zero(name) ? absent : positive_or(name, absent);
}

std::int64_t Keys::same_in_layers(std::string_view name, int layers, std::int64_t least, std::int64_t most) const {
  if (!is_list(name)) return integer(name, least, most);
  const std::vector<std::int64_t> list = integers(name);
  const auto blocks = static_cast<std::size_t>(integer("block_count", 1, most));
  if (list.size() != blocks) refuse(name, fmt::format("a number, or a list of {}, one for each block", blocks));
  const std::string whole = key(name);
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(layers); ++layer) {
    if (list[layer] < least || list[layer] > most) {
      fail("{}: {} of layer {} is {}; it must be an integer from {} to {}", file(), whole, layer, list[layer], least,
           most);
    }
    if (list[layer] != list.front()) {
      fail("{}: {} of layer {} is {}, that of layer 0 is {}; layers of different sizes are not supported", file(),
           whole, layer, list[layer], list.front());
    }
  }
  return list.front();
}

std::vector<std::string> Keys::unread() const {
  std::vector<std::string> names;
  for (auto at = metadata_.values().lower_bound(prefix_); at != metadata_.values().end(); ++at) {
    if (!at->first.starts_with(prefix_)) break;
    if (!read_.contains(at->first)) names.push_back(at->first.substr(prefix_.size()));
  }
  return names;
}

}  // namespace hayloft::runtime::gguf
