#include "runtime/method.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "offload/error.h"
#include "offload/format.h"

namespace hayloft::runtime {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Method> (*make)(const MethodOptions&);
};
constexpr Entry methods[] = {
    {"dense", make_dense}, {"sparq", make_sparq}, {"topk", make_topk}, {"window", make_window}};

const Entry& find(std::string_view name) {
  for (const Entry& entry : methods) {
    if (name == entry.name) return entry;
  }
  fail("--attn {}: unknown attention method; one of {}", name, fmt::join(method_names(), ", "));
}

int parse_int(std::string_view text, std::string_view option) {
  const std::int64_t value = parse_count(text);
  if (value > std::numeric_limits<int>::max()) fail("{} {}: too large", option, text);
  return static_cast<int>(value);
}

}  // namespace

std::int64_t Budget::of(std::int64_t tokens) const {
  const std::int64_t wanted =
      count > 0 ? count : static_cast<std::int64_t>(std::ceil(share * static_cast<double>(tokens)));
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, tokens));
}

std::string Budget::text() const {
  return count > 0 ? fmt::format("{}", count) : fmt::format("{:g}%", share * 100);
}

Budget parse_budget(std::string_view text, std::string_view option) {
  if (!text.empty() && text.back() == '%') {
    double percent = 0;
    const char* end = text.data() + text.size() - 1;
    const auto [stop, error] = std::from_chars(text.data(), end, percent);
    if (error != std::errc() || stop != end || !(percent > 0 && percent <= 100)) {
      fail("{} {}: a share is written as a number above 0 and up to 100 followed by %", option, text);
    }
    return {0, percent / 100};
  }
  const std::int64_t count = parse_count(text);
  if (count < 1) fail("{} {}: at least one position must be attended", option, text);
  return {count, 0};
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Entry& entry : methods) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Method> make_method(const MethodOptions& options, int head_dim) {
  const Entry& entry = find(options.name);
  if (options.name == "sparq" && (options.rank < 1 || options.rank > head_dim)) {
    fail("--attn-r {}: the rank must be between 1 and the head dimension, {}", options.rank, head_dim);
  }
  if (options.window && *options.window < 0) fail("--attn-window {}: cannot be negative", *options.window);
  if (options.sinks < 0) fail("--attn-sinks {}: cannot be negative", options.sinks);
  const bool counts_window_in_k = options.name == "sparq" || options.name == "topk";
  if (counts_window_in_k && options.window && options.k.count > 0 && *options.window > options.k.count) {
    fail("--attn-window {}: the window is counted in --attn-k, which is only {}; raise it", *options.window,
         options.k.count);
  }
  if (options.name == "window" && options.window == 0 && options.sinks == 0) {
    fail("--attn window: with --attn-window 0 and --attn-sinks 0 there is nothing to attend to");
  }
  if (options.faiss && options.per == index::SelectPer::kv_head) {
    fail("--topk-engine faiss selects per query head; leave --attn-select out or use --topk-engine own");
  }
  return entry.make(options);
}

MethodOptions parse_method(std::string_view text, const MethodOptions& defaults) {
  MethodOptions options = defaults;
  const std::size_t colon = text.find(':');
  options.name = std::string(text.substr(0, colon));
  find(options.name);
  for (std::size_t at = colon; at != std::string_view::npos;) {
    const std::size_t next = text.find(':', at + 1);
    const std::string_view pair = text.substr(at + 1, next == std::string_view::npos ? next : next - at - 1);
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
    const std::string option = fmt::format("--attn {}: {}", options.name, key);
    if (key == "r") {
      options.rank = parse_int(value, option);
    } else if (key == "k") {
      options.k = parse_budget(value, option);
    } else if (key == "window") {
      options.window = parse_count(value);
    } else if (key == "sinks") {
      options.sinks = parse_count(value);
    } else {
      fail("--attn {}: unknown option '{}'; one of r, k, window, sinks, written as {}:k=128", text, key, options.name);
    }
    at = next;
  }
  return options;
}

std::int32_t* positions_for(const Step& step, std::int64_t count) {
  const std::uint64_t bytes = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(count)) * sizeof(std::int32_t);
  if (step.scratch.positions.bytes() < bytes) step.scratch.positions = step.backend.allocate(bytes, step.stream);
  return step.scratch.positions.as<std::int32_t>();
}

float* alpha_for(const Step& step) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(step.query_heads) * sizeof(float);
  if (step.scratch.alpha.bytes() < bytes) step.scratch.alpha = step.backend.allocate(bytes, step.stream);
  return step.scratch.alpha.as<float>();
}

void record(const Step& step, const gpu::Attended& what) {
  if (!step.trace) return;
  StepTrace& trace = *step.trace;
  trace.lists = what.lists;
  trace.k = what.k;
  trace.ranges[0] = what.ranges[0];
  trace.ranges[1] = what.ranges[1];
  trace.positions.resize(static_cast<std::size_t>(what.lists) * static_cast<std::size_t>(what.k));
  trace.alpha.clear();
  if (!trace.positions.empty()) {
    step.backend.to_host(trace.positions.data(), what.positions, trace.positions.size() * sizeof(std::int32_t),
                         step.stream);
  }
}

}  // namespace hayloft::runtime
