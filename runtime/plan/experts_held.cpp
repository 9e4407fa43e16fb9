#include "runtime/plan/experts_held.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime::plan {

ExpertsHeld read_experts_held(const std::filesystem::path& path, int experts) {
  const ExpertsHeld held = parse_experts_held(read_json_file(path), path.string());
  if (experts != 0 && experts != held.experts) {
    fail("{}: is of a model with {} experts a layer, and this one has {}", path.string(), held.experts, experts);
  }
  return held;
}

ExpertsHeld parse_experts_held(const nlohmann::json& json, const std::string& where) {
  ExpertsHeld held;
  std::map<double, std::pair<double, int>> shares;  // by kept: the sum of what was held, and of how many layers
  try {
    if (json.at("schema").get<std::string>() != "hayloft.attention/1") fail("no hayloft.attention/1");
    for (const nlohmann::json& layer : json.value("experts", nlohmann::json::array())) {
      const int experts = layer.at("experts").get<int>();
      if (held.experts != 0 && held.experts != experts) fail("layers of different numbers of experts");
      held.experts = experts;
      for (const nlohmann::json& row : layer.at("held")) {
        const int kept = row.at("kept").get<int>();
        const double mean = row.at("mean").get<double>();
        if (kept < 1 || kept > experts || !(mean >= 0 && mean <= 1)) fail("shares of experts that are none");
        auto& [sum, layers] = shares[static_cast<double>(kept) / experts];
        sum += mean, ++layers;
      }
    }
  } catch (const std::exception& wrong) {
    fail("{}: is not what --attention-stats writes as JSON: {}", where, wrong.what());
  }
  if (shares.empty()) {
    fail("{}: says nothing of experts; take it of a model that has them, over more than 16 tokens", where);
  }
  for (const auto& [kept, sum] : shares) held.measured.push_back({kept, sum.first / sum.second});
  return held;
}

}  // namespace hayloft::runtime::plan
