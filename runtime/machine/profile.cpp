#include "runtime/machine/profile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/output_file.h"
#include "offload/text/json_text.h"

namespace hayloft::runtime::plan {
namespace {

constexpr const char* schema = "hayloft.profile/1";

struct RateField {
  const char* name;
  double AttentionRates::*rate;
};
constexpr RateField first_rates[] = {
    {"exact_scan_GBps", &AttentionRates::exact_scan}, {"row_gather_GBps", &AttentionRates::row_gather},
    {"dense_GBps", &AttentionRates::dense},           {"tail_GBps", &AttentionRates::tail},
    {"sparq_tail_GBps", &AttentionRates::sparq_tail},
};
constexpr RateField last_rates[] = {
    {"row_scan_GBps", &AttentionRates::row_scan},
    {"causal_GFLOPps", &AttentionRates::causal},
    {"ann_search_GBps", &AttentionRates::ann_search},
};
// Times, in microseconds.
constexpr RateField time_fields[] = {
    {"column_select_us", &AttentionRates::column_select_us},
    {"exact_select_us", &AttentionRates::exact_select_us},
};

// Calls visit(name, rate) for every rate, in the order of the file.
template <class Rates, class Visit>
void each_rate(Rates& rates, const Visit& visit) {
  const auto columns = [&](const offload::ColumnTraits& traits) {
    visit(traits.rate, rates.column_scans[static_cast<std::size_t>(traits.format)]);
  };
  columns(offload::column_traits[0]);
  for (const RateField& field : first_rates) visit(field.name, rates.*field.rate);
  for (std::size_t i = 1; i < offload::column_format_count; ++i) columns(offload::column_traits[i]);
  for (const RateField& field : last_rates) visit(field.name, rates.*field.rate);
}

struct ColumnsField {
  const char* name;
  LinkColumns MachineProfile::*columns;
  std::optional<double> LinkColumns::*way;
};
constexpr ColumnsField columns_fields[] = {
    {"link_columns_f16_sm_GBps", &MachineProfile::link_columns_f16, &LinkColumns::sm},
    {"link_columns_f16_copy_GBps", &MachineProfile::link_columns_f16, &LinkColumns::copy},
    {"link_columns_f16_both_GBps", &MachineProfile::link_columns_f16, &LinkColumns::both},
    {"link_columns_int8_sm_GBps", &MachineProfile::link_columns_int8, &LinkColumns::sm},
    {"link_columns_int8_copy_GBps", &MachineProfile::link_columns_int8, &LinkColumns::copy},
    {"link_columns_int8_both_GBps", &MachineProfile::link_columns_int8, &LinkColumns::both},
    {"link_columns_int4_sm_GBps", &MachineProfile::link_columns_int4, &LinkColumns::sm},
    {"link_columns_int4_copy_GBps", &MachineProfile::link_columns_int4, &LinkColumns::copy},
    {"link_columns_int4_both_GBps", &MachineProfile::link_columns_int4, &LinkColumns::both},
};

AttentionRates read_rates(const nlohmann::json& entry, const std::string& where) {
  const JsonFields fields(entry, where);
  AttentionRates rates;
  rates.head_dim = static_cast<int>(fields.integer("head_dim", 8, offload::most_head_dim));
  rates.group = static_cast<int>(fields.integer("group", 1, 4096));
  each_rate(rates, [&](const char* name, double& rate) { rate = fields.positive(name); });
  for (const RateField& field : time_fields) rates.*field.rate = fields.positive(field.name);
  return rates;
}

std::optional<double> read_optional(const JsonFields& fields, const char* name) {
  if (fields.is_null(name)) return std::nullopt;
  return fields.positive(name);
}

// Returns how far apart two sizes are, the same for half and for double.
double distance(int a, int b) {
  return std::fabs(std::log2(static_cast<double>(a) / b));
}

// `a` with the time per byte moved towards that of `b` by `weight`.
AttentionRates between(AttentionRates a, const AttentionRates& b, double weight) {
  std::vector<double> others;
  each_rate(b, [&](const char*, double rate) { others.push_back(rate); });
  auto other = others.begin();
  each_rate(a, [&](const char*, double& rate) { rate = 1 / ((1 - weight) / rate + weight / *other++); });
  for (const RateField& field : time_fields) {
    a.*field.rate = (1 - weight) * (a.*field.rate) + weight * (b.*field.rate);
  }
  return a;
}

// See MachineProfile::best_link.
gpu::Link best_of(const LinkColumns& columns) {
  constexpr double margin = 1.1;
  const double sm = columns.sm.value_or(0);
  const double copy = columns.copy.value_or(0);
  const double both = columns.both.value_or(0);
  if (both > margin * std::max(sm, copy)) return gpu::Link::both;
  return copy > margin * sm ? gpu::Link::copy : gpu::Link::sm;
}

// See MachineProfile::rates.
AttentionRates rates_among(const std::vector<AttentionRates>& attention, int head_dim, int group) {
  if (attention.empty()) fail("the machine profile has no rates of attention; measure again with hayloft link");
  int nearest = attention.front().head_dim;
  for (const AttentionRates& rates : attention) {
    if (distance(rates.head_dim, head_dim) < distance(nearest, head_dim)) nearest = rates.head_dim;
  }
  const AttentionRates* below = nullptr;  // the measured groups on both sides
  const AttentionRates* above = nullptr;
  for (const AttentionRates& rates : attention) {
    if (rates.head_dim != nearest) continue;
    if (rates.group <= group && (!below || rates.group > below->group)) below = &rates;
    if (rates.group >= group && (!above || rates.group < above->group)) above = &rates;
  }
  if (!below) below = above;
  if (!above) above = below;
  AttentionRates result = *below;
  result.head_dim = head_dim;
  result.group = group;
  if (above->group == below->group) {
    // Past the largest group every query head costs what it costs there.
    const double share = std::min(1.0, static_cast<double>(below->group) / group);
    each_rate(result, [&](const char*, double& rate) { rate *= share; });
    return result;
  }
  return between(result, *above, static_cast<double>(group - below->group) / (above->group - below->group));
}

}  // namespace

AttentionRates MachineProfile::rates(int head_dim, int group) const {
  return rates_among(attention, head_dim, group);
}

AttentionRates MachineProfile::rates(int head_dim, int group, std::uint64_t store_bytes) const {
  const AttentionRates large = rates(head_dim, group);
  const double small = static_cast<double>(small_footprint_bytes);
  const double past_caches = static_cast<double>(footprint_bytes) / 4;
  if (attention_small.empty() || past_caches <= small) return large;
  const double way = std::log(std::max(1.0, static_cast<double>(store_bytes)) / small) / std::log(past_caches / small);
  return between(rates_among(attention_small, head_dim, group), large, std::clamp(way, 0.0, 1.0));
}

gpu::LinkChoice MachineProfile::best_link() const {
  gpu::LinkChoice best;
  best.f16 = best_of(link_columns_f16);
  best.int8 = best_of(link_columns_int8);
  best.int4 = best_of(link_columns_int4);
  return best;
}

namespace {

// Returns null for a rate that was not measured, which is 0.
nlohmann::ordered_json measured_or_null(double rate) {
  return json_or_null(rate > 0 ? std::optional(rate) : std::nullopt);
}

}  // namespace

std::string profile_json(const MachineProfile& profile) {
  nlohmann::ordered_json json = {{"schema", schema}};
  if (profile.origin.known()) {
    json.update({{"host", profile.origin.host},
                 {"processor", profile.origin.processor},
                 {"date", profile.origin.date},
                 {"version", profile.origin.version},
                 {"seconds", profile.origin.seconds},
                 {"memory_bytes", profile.origin.memory_bytes},
                 {"gpu_memory_bytes", profile.origin.gpu_memory_bytes}});
  }
  json.update({
      {"machine", profile.machine},
      {"device", profile.device},
      {"threads", profile.threads},
      {"footprint_bytes", profile.footprint_bytes},
      {"near_read_GBps", measured_or_null(profile.near_read)},
      {"weight_stream_GBps", measured_or_null(profile.weight_stream)},
      {"matmul_GFLOPps", measured_or_null(profile.matmul)},
      {"layer_overhead_us", measured_or_null(profile.layer_overhead_us)},
      {"link_to_device_GBps", json_or_null(profile.link_to_device)},
      {"link_to_host_GBps", json_or_null(profile.link_to_host)},
  });
  for (const ColumnsField& field : columns_fields) json[field.name] = json_or_null(profile.*field.columns.*field.way);
  for (const NearRead& read : profile.near_reads) {
    json["near_reads"].push_back({{"node", read.node}, {"threads", read.threads}, {"GBps", read.rate}});
  }
  const auto add = [&](const char* list, const std::vector<AttentionRates>& attention) {
    for (const AttentionRates& rates : attention) {
      nlohmann::ordered_json entry = {{"head_dim", rates.head_dim}, {"group", rates.group}};
      each_rate(rates, [&](const char* name, double rate) { entry[name] = measured_or_null(rate); });
      for (const RateField& field : time_fields) entry[field.name] = measured_or_null(rates.*field.rate);
      json[list].push_back(std::move(entry));
    }
  };
  add("attention", profile.attention);
  if (!profile.attention_small.empty()) {
    json["small_footprint_bytes"] = profile.small_footprint_bytes;
    add("attention_small", profile.attention_small);
  }
  for (const RateSpread& spread : profile.spreads) {
    json["spreads"].push_back({{"what", spread.what},
                               {"head_dim", spread.head_dim},
                               {"group", spread.group},
                               {"small", spread.small},
                               {"runs", spread.runs},
                               {"slowest", spread.slowest},
                               {"low", spread.low},
                               {"high", spread.high},
                               {"fastest", spread.fastest}});
  }
  return json_document(json);
}

namespace {

RateSpread read_spread(const nlohmann::json& entry, const std::string& where) {
  const JsonFields fields(entry, where);
  RateSpread spread;
  spread.what = fields.text("what");
  spread.head_dim = static_cast<int>(fields.integer("head_dim", 0, offload::most_head_dim));
  spread.group = static_cast<int>(fields.integer("group", 0, 4096));
  spread.small = fields.boolean_or("small", false);
  spread.runs = static_cast<int>(fields.integer("runs", 1, 1 << 30));
  spread.slowest = fields.positive("slowest");
  spread.low = fields.positive("low");
  spread.high = fields.positive("high");
  spread.fastest = fields.positive("fastest");
  return spread;
}

// All of it or, in profiles of before it was kept, nothing.
ProfileOrigin read_origin(const JsonFields& fields) {
  if (!fields.find("host")) return {};
  const auto bytes = [&](const char* name) {
    return static_cast<std::uint64_t>(fields.integer(name, 0, std::int64_t{1} << 62));
  };
  ProfileOrigin origin;
  origin.host = fields.text("host");
  origin.processor = fields.text("processor");
  origin.date = fields.text("date");
  origin.version = fields.text("version");
  origin.seconds = fields.positive("seconds");
  origin.memory_bytes = bytes("memory_bytes");
  origin.gpu_memory_bytes = bytes("gpu_memory_bytes");
  return origin;
}

MachineProfile parse_profile(const nlohmann::json& json, const std::string& from) {
  const JsonFields fields(json, from);
  if (fields.text("schema") != schema) fields.refuse("schema", *fields.find("schema"), fmt::format("\"{}\"", schema));
  MachineProfile profile;
  profile.origin = read_origin(fields);
  profile.machine = fields.text("machine");
  profile.device = fields.text("device");
  if (profile.device != "cpu" && profile.device != "cuda") {
    fields.refuse("device", *fields.find("device"), "\"cpu\" or \"cuda\"");
  }
  profile.threads = static_cast<int>(fields.integer("threads", 1, 1 << 20));
  profile.footprint_bytes = static_cast<std::uint64_t>(fields.integer("footprint_bytes", 1, std::int64_t{1} << 62));
  profile.near_read = fields.positive("near_read_GBps");
  profile.weight_stream = fields.positive("weight_stream_GBps");
  profile.matmul = fields.positive("matmul_GFLOPps");
  profile.layer_overhead_us = fields.positive("layer_overhead_us");
  profile.link_to_device = read_optional(fields, "link_to_device_GBps");
  profile.link_to_host = read_optional(fields, "link_to_host_GBps");
  for (const ColumnsField& field : columns_fields)
    profile.*field.columns.*field.way = read_optional(fields, field.name);
  const auto each_of = [&](const char* name, const auto& read) {
    const nlohmann::json* list = fields.find(name);
    if (!list) fail("{}: the field {} is missing", from, name);
    if (!list->is_array()) fields.refuse(name, *list, "a list of at least one object of rates");
    if (list->empty()) fail("{}: {} is an empty list; it must hold at least one object of rates", from, name);
    for (std::size_t i = 0; i < list->size(); ++i) {
      read((*list)[i], fmt::format("{}: {}[{}]", from, name, i));
    }
  };
  each_of("near_reads", [&](const nlohmann::json& entry, const std::string& where) {
    const JsonFields read(entry, where);
    profile.near_reads.push_back({static_cast<int>(read.integer("node", 0, 1 << 20)),
                                  static_cast<int>(read.integer("threads", 1, 1 << 20)), read.positive("GBps")});
  });
  const auto read_list = [&](const char* name) {
    std::vector<AttentionRates> rates;
    each_of(name,
            [&](const nlohmann::json& entry, const std::string& where) { rates.push_back(read_rates(entry, where)); });
    return rates;
  };
  profile.attention = read_list("attention");
  if (fields.find("attention_small")) {
    profile.small_footprint_bytes =
        static_cast<std::uint64_t>(fields.integer("small_footprint_bytes", 1, std::int64_t{1} << 62));
    profile.attention_small = read_list("attention_small");
  }
  if (fields.find("spreads")) {
    each_of("spreads", [&](const nlohmann::json& entry, const std::string& where) {
      profile.spreads.push_back(read_spread(entry, where));
    });
  }
  return profile;
}

}  // namespace

MachineProfile read_profile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) fail("{}: no such file; hayloft link --profile makes one", path.string());
  try {
    return parse_profile(read_json_file(path), path.string());
  } catch (const Error& wrong) {
    fail("{}; measure again with hayloft link", wrong.what());
  }
}

MachineProfile parse_profile(const std::string& text) {
  return parse_profile(nlohmann::json::parse(text), "a machine profile");
}

void write_profile(const MachineProfile& profile, const std::filesystem::path& path) {
  require_profile_writable(path);
  offload::write_file(path, profile_json(profile));
}

void require_profile_writable(const std::filesystem::path& path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) {
    fail("{}: cannot be written, as its folder cannot be made: {}; name another file by --profile", path.string(),
         error.message());
  }
  offload::require_writable(path);
}

std::optional<MachineProfile> find_profile(const std::filesystem::path& given) {
  if (!given.empty()) return read_profile(given);
  const std::filesystem::path kept = default_profile_path();
  std::error_code error;
  if (!std::filesystem::exists(kept, error)) return std::nullopt;
  return read_profile(kept);
}

std::shared_ptr<const MachineRates> machine_rates(const std::optional<MachineProfile>& profile,
                                                  const std::string& device, int global_layers,
                                                  const std::string& source) {
  if (!profile || profile->device != device) return built_in_rates(device);
  MachineRates rates = *built_in_rates(device);
  rates.source = fmt::format("{} (threads: {})", source, profile->threads);
  rates.margin = MachineRates().margin;
  const auto layers = static_cast<std::uint64_t>(global_layers);
  rates.rates = [of = *profile, layers](int head_dim, int group, std::uint64_t layer_bytes) {
    return of.rates(head_dim, group, layers * layer_bytes);
  };
  return std::make_shared<const MachineRates>(std::move(rates));
}

std::filesystem::path default_profile_path() {
  const auto folder = [](const char* name) -> std::filesystem::path {
    const char* value = std::getenv(name);
    // The XDG rules: a relative path is as good as none.
    return value && value[0] == '/' ? value : "";
  };
  if (const auto cache = folder("XDG_CACHE_HOME"); !cache.empty()) return cache / "hayloft" / "profile.json";
  if (const auto home = folder("HOME"); !home.empty()) return home / ".cache" / "hayloft" / "profile.json";
  fail("neither XDG_CACHE_HOME nor HOME says where machine profiles are kept; name one with --profile FILE");
}

}  // namespace hayloft::runtime::plan
