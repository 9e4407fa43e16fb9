#include "runtime/machine/link_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/format.h"
#include "offload/text/text_table.h"

namespace hayloft::runtime::plan {
namespace {

using Json = nlohmann::ordered_json;

// "dense_GBps" is dense, in GB/s.
struct Named {
  std::string what;
  std::string unit;
};

std::optional<Named> named(const std::string& field) {
  static constexpr std::pair<std::string_view, const char*> units[] = {
      {"_GBps", "GB/s"}, {"_GFLOPps", "GFLOP/s"}, {"_us", "us"}};
  for (const auto& [ending, unit] : units) {
    if (!field.ends_with(ending)) continue;
    std::string what = field.substr(0, field.size() - ending.size());
    std::replace(what.begin(), what.end(), '_', ' ');
    return Named{what, unit};
  }
  return std::nullopt;
}

bool is_time(const std::string& unit) {
  return unit == "us" || unit == "ns";
}

double number(const Json& object, const char* name, double absent = 0) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : absent;
}

std::string text(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

const Json& list(const Json& object, const char* name) {
  static const Json none = Json::array();
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : none;
}

// Spreads of a profile by field, head dimension, group and footprint; those of near_reads in turn.
class Spreads {
 public:
  explicit Spreads(const Json& profile) {
    for (const Json& spread : list(profile, "spreads")) by_key_[key_of(spread)].push_back(&spread);
  }
  void take(MeasuredRate& rate, const std::string& field, int head_dim, int group, bool small) {
    const auto found = by_key_.find(fmt::format("{} {} {} {}", field, head_dim, group, small));
    if (found == by_key_.end() || found->second.empty()) return;
    const Json& spread = *found->second.front();
    if (field == "near_reads") found->second.erase(found->second.begin());
    // Of a rate; the slowest turn takes the longest time.
    const double slowest = number(spread, "slowest", 1), fastest = number(spread, "fastest", 1);
    if (!(slowest > 0) || !(fastest > 0)) return;
    rate.slowest = is_time(rate.unit) ? rate.value / slowest : rate.value * slowest;
    rate.fastest = is_time(rate.unit) ? rate.value / fastest : rate.value * fastest;
    rate.unreliable = number(spread, "runs") < 4 || number(spread, "high", 1) - number(spread, "low", 1) > 0.25;
  }

 private:
  static std::string key_of(const Json& spread) {
    return fmt::format("{} {} {} {}", text(spread, "what"), static_cast<int>(number(spread, "head_dim")),
                       static_cast<int>(number(spread, "group")), spread.value("small", false));
  }
  std::map<std::string, std::vector<const Json*>> by_key_;
};

void add_attention(const Json& profile, const char* name, bool small, Spreads& spreads,
                   std::vector<MeasuredRate>& rates) {
  for (const Json& entry : list(profile, name)) {
    const int d = static_cast<int>(number(entry, "head_dim")), group = static_cast<int>(number(entry, "group"));
    for (const auto& [field, value] : entry.items()) {
      const std::optional<Named> it = named(field);
      if (!it || !value.is_number() || value.get<double>() <= 0) continue;
      MeasuredRate rate{fmt::format("{}, d={}, group {}{}", it->what, d, group, small ? ", little memory" : ""),
                        it->unit, value.get<double>()};
      spreads.take(rate, field, d, field == "ann_search_GBps" ? 0 : group, small && field != "ann_search_GBps");
      rates.push_back(std::move(rate));
    }
  }
}

void add_profile(const Json& profile, std::vector<MeasuredRate>& rates) {
  Spreads spreads(profile);
  for (const auto& [field, value] : profile.items()) {
    const std::optional<Named> it = named(field);
    if (!it || !value.is_number() || value.get<double>() <= 0) continue;
    MeasuredRate rate{it->what, it->unit, value.get<double>()};
    spreads.take(rate, field, 0, 0, false);
    rates.push_back(std::move(rate));
  }
  for (const Json& read : list(profile, "near_reads")) {
    MeasuredRate rate{fmt::format("near read, node {}, threads {}", static_cast<int>(number(read, "node")),
                                  static_cast<int>(number(read, "threads"))),
                      "GB/s", number(read, "GBps")};
    spreads.take(rate, "near_reads", 0, 0, false);
    rates.push_back(std::move(rate));
  }
  add_attention(profile, "attention", false, spreads, rates);
  add_attention(profile, "attention_small", true, spreads, rates);
}

void add_link(const Json& link, std::vector<MeasuredRate>& rates) {
  for (const Json& figure : list(link, "figures")) {
    MeasuredRate rate{text(figure, "test"), text(figure, "unit"), number(figure, "value")};
    if (rate.what.empty() || rate.value <= 0) continue;
    const auto detail = [&](const std::string& what) { rate.what += ", " + what; };
    if (!text(figure, "engine").empty()) detail(text(figure, "engine"));
    detail(format_bytes(static_cast<std::uint64_t>(number(figure, "page_bytes"))) + " pages");
    if (number(figure, "node", -1) >= 0) detail(fmt::format("node {}", static_cast<int>(number(figure, "node"))));
    detail(format_bytes(static_cast<std::uint64_t>(number(figure, "footprint_bytes"))));
    if (number(figure, "piece_bytes") > 0) detail(fmt::format("{} B", static_cast<int>(number(figure, "piece_bytes"))));
    if (!text(figure, "order").empty()) detail(text(figure, "order"));
    if (number(figure, "runs") > 0) {
      rate.slowest = number(figure, "slowest");
      rate.fastest = number(figure, "fastest");
      rate.unreliable = std::abs(rate.fastest - rate.slowest) > 0.25 * rate.value;
    }
    rates.push_back(std::move(rate));
  }
}

bool overlap(const MeasuredRate& a, const MeasuredRate& b) {
  if (a.fastest <= 0 || b.fastest <= 0) return false;
  const auto [a_low, a_high] = std::minmax(a.slowest, a.fastest);
  const auto [b_low, b_high] = std::minmax(b.slowest, b.fastest);
  return a_low <= b_high && b_low <= a_high;
}

struct Pair {
  const MeasuredRate* a;
  const MeasuredRate* b;
  double ratio() const { return is_time(a->unit) ? a->value / b->value : b->value / a->value; }
  const char* remark() const {
    if (a->unreliable || b->unreliable) return "unreliable";
    return overlap(*a, *b) ? "within the spread" : "";
  }
};

const MeasuredRate* find(const std::vector<MeasuredRate>& rates, const MeasuredRate& like) {
  const auto found = std::find_if(rates.begin(), rates.end(), [&](const MeasuredRate& rate) {
    return rate.what == like.what && rate.unit == like.unit;
  });
  return found == rates.end() ? nullptr : &*found;
}

std::vector<Pair> pairs(const MeasuredMachine& a, const MeasuredMachine& b) {
  std::vector<Pair> all;
  for (const MeasuredRate& rate : a.rates) {
    if (const MeasuredRate* other = find(b.rates, rate)) all.push_back({&rate, other});
  }
  return all;
}

std::string only_in(const MeasuredMachine& one, const MeasuredMachine& other, const char* which) {
  std::string names;
  for (const MeasuredRate& rate : one.rates) {
    if (!find(other.rates, rate)) names += (names.empty() ? "" : "; ") + rate.what;
  }
  return names.empty() ? "" : fmt::format("\nonly in {}: {}\n", which, names);
}

}  // namespace

MeasuredMachine read_measured(const std::filesystem::path& path) {
  const Json json = read_ordered_json_file(path);
  const auto has = [&](const char* name) { return json.is_object() && json.contains(name) && json[name].is_object(); };
  const bool is_profile = json.is_object() && text(json, "schema") == "hayloft.profile/1";
  if (!is_profile && !has("link")) {
    fail("{}: is neither a machine profile nor what hayloft link --json wrote", path.string());
  }
  MeasuredMachine machine;
  const auto add = [&](const std::string& what) {
    if (!what.empty()) machine.name += (machine.name.empty() ? "" : ", ") + what;
  };
  add(text(json, "host"));
  add(text(json, "processor").empty() ? text(json, "machine") : text(json, "processor"));
  if (has("link")) add(text(json["link"], "device"));
  add(text(json, "date"));
  if (machine.name.empty()) machine.name = path.string();
  if (is_profile) add_profile(json, machine.rates);
  if (has("link")) add_link(json["link"], machine.rates);
  return machine;
}

std::string compare_table(const MeasuredMachine& a, const MeasuredMachine& b) {
  TextTable table{{"what", "A", "B", "", "B over A", ""}};
  for (const Pair& pair : pairs(a, b)) {
    table.push_back({pair.a->what, fmt::format("{:.4g}", pair.a->value), fmt::format("{:.4g}", pair.b->value),
                     pair.a->unit, fmt::format("{:.2f}", pair.ratio()), pair.remark()});
  }
  return fmt::format("A: {}\nB: {}\n\n{}\nA ratio above 1 says that B is faster, in times as in rates.\n{}{}", a.name,
                     b.name, markdown(table), only_in(a, b, "A"), only_in(b, a, "B"));
}

std::string compare_csv(const MeasuredMachine& a, const MeasuredMachine& b) {
  std::string csv = "what,unit,a,b,b_over_a,remark\n";
  for (const Pair& pair : pairs(a, b)) {
    csv += fmt::format("\"{}\",{},{:.6g},{:.6g},{:.4f},{}\n", pair.a->what, pair.a->unit, pair.a->value, pair.b->value,
                       pair.ratio(), pair.remark());
  }
  return csv;
}

}  // namespace hayloft::runtime::plan
