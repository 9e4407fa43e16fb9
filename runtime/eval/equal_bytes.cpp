#include "runtime/eval/equal_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "index/ann/ann.h"
#include "offload/error.h"

namespace hayloft::runtime::eval {
namespace {

// k raised by the positions whose rows take `bits` bits of every position.
void spend_on_rows(MethodOptions& method, double bits, const ReadShape& shape) {
  const std::int64_t more = std::llround(static_cast<double>(shape.tokens) * bits / (32.0 * shape.head_dim));
  std::vector<Budget> raised;
  for (const Budget& k : method.k.by_layer()) {
    raised.push_back({std::min(shape.tokens, k.of(shape.tokens) + more), 0});
  }
  method.k = Budgets(std::move(raised));
}

// n of "IVFn,..."; nothing of any other index.
std::optional<int> lists_of(const std::string& factory) {
  constexpr std::string_view ivf = "IVF";
  if (!factory.starts_with(ivf)) return std::nullopt;
  int lists = 0;
  const auto [stop, error] = std::from_chars(factory.data() + ivf.size(), factory.data() + factory.size(), lists);
  if (error != std::errc() || lists < 1) return std::nullopt;
  return lists;
}

// The method at so many bits; else why it cannot be had.
std::string sized(MethodOptions& method, int bits, const ReadShape& shape) {
  const int d = shape.head_dim;
  if (method.name == "sparq" || method.name == "lowrank") {
    const int each = method.name == "sparq" ? offload::bits_of(shape.columns) : 16;
    method.rank = std::min(bits / each, d);
    return method.rank > 0 ? "" : fmt::format("one component takes {} bits", each);
  }
  if (method.name == "planes") {
    method.bits = std::min(bits, d * offload::plane_count);
    return "";
  }
  if (method.name == "pages") {
    for (const int page : {16, 32, 64}) {
      const double bounds = 32.0 * d / page;
      if (bounds > bits) continue;
      method.page = page;
      spend_on_rows(method, bits - bounds, shape);
      return "";
    }
    return fmt::format("bounds of pages of 64 tokens take {} bits", d / 2);
  }
  if (method.name == "ann") {
    const std::string factory = method.factory.empty() ? index::default_ann_factory(shape.tokens) : method.factory;
    const std::optional<int> lists = lists_of(factory);
    if (!lists || !factory.ends_with(",Flat")) return "only IVFn,Flat can be sized";
    const double centroids = 32.0 * d * *lists / static_cast<double>(shape.tokens);
    const double left = static_cast<double>(bits) / shape.group - centroids;
    method.probes = static_cast<int>(left / (16.0 * d) * *lists);
    return method.probes > 0 ? "" : fmt::format("centroids and a list take more at {} tokens", shape.tokens);
  }
  if (method.name == "window" && method.window)
    return "window=W is all that it reads; without it k grows with the bits";
  spend_on_rows(method, bits, shape);  // window, h2o
  return "";
}

}  // namespace

bool reads_every_key(const MethodOptions& method) {
  constexpr std::string_view names[] = {"dense", "topk", "flexgen", "oracle"};
  return std::find(std::begin(names), std::end(names), method.name) != std::end(names);
}

EqualBytes at_equal_bytes(const std::vector<MethodOptions>& methods, const std::vector<int>& bits,
                          const ReadShape& shape) {
  std::vector<int> sizes = bits;
  std::sort(sizes.begin(), sizes.end());
  if (sizes.empty() || sizes.front() < 1) fail("equal bytes need numbers of bits, each at least 1");
  EqualBytes result;
  const auto add = [&](const MethodOptions& method) {
    if (std::find(result.methods.begin(), result.methods.end(), method) == result.methods.end()) {
      result.methods.push_back(method);
    }
  };
  for (const MethodOptions& method : methods) {
    if (reads_every_key(method)) {
      add(method);
      continue;
    }
    for (const int size : sizes) {
      MethodOptions at = method;
      const std::string why = sized(at, size, shape);
      if (why.empty()) {
        add(at);
      } else {
        result.left_out.push_back(fmt::format("{} at {} bits: {}", method.name, size, why));
      }
    }
  }
  return result;
}

}  // namespace hayloft::runtime::eval
