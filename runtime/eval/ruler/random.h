#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/eval/needle/haystack.h"

// Random choices that are the same on every machine, unlike the standard library's.
namespace hayloft::runtime::eval {

template <class T>
void shuffle(std::vector<T>& items, std::mt19937_64& random) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[draw(random, i)]);
}

// `count` different numbers of [0, n), ascending; count <= n.
inline std::vector<std::int64_t> choose(std::int64_t n, std::int64_t count, std::mt19937_64& random) {
  std::set<std::int64_t> chosen;  // Floyd's way: one draw each
  for (std::int64_t i = n - count; i < n; ++i) {
    const auto at = static_cast<std::int64_t>(draw(random, static_cast<std::uint64_t>(i) + 1));
    chosen.insert(chosen.count(at) > 0 ? i : at);
  }
  return {chosen.begin(), chosen.end()};
}

inline std::string random_letters(int count, char first, std::mt19937_64& random) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(first + static_cast<char>(draw(random, 26)));
  return text;
}

// Puts `more`, in their order, at random places between `lines`.
inline void scatter(std::vector<std::string>& lines, std::vector<std::string> more, std::mt19937_64& random) {
  const auto total = static_cast<std::int64_t>(lines.size() + more.size());
  const auto places = choose(total, static_cast<std::int64_t>(more.size()), random);
  std::vector<std::string> mixed;
  mixed.reserve(static_cast<std::size_t>(total));
  auto place = places.begin();
  auto line = lines.begin();
  for (std::int64_t i = 0; i < total; ++i) {
    if (place != places.end() && *place == i) {
      mixed.push_back(std::move(more[static_cast<std::size_t>(place++ - places.begin())]));
    } else {
      mixed.push_back(std::move(*line++));
    }
  }
  lines = std::move(mixed);
}

}  // namespace hayloft::runtime::eval
