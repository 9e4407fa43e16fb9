#include "runtime/plan/experts_held.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime::plan {

ExpertsHeld read_experts_held(const std::filesystem::path& path) {
  return parse_experts_held(read_json_file(path), path.string());
}

ExpertsHeld parse_experts_held(const nlohmann::json& json, const std::string& where) {
  std::map<double, std::pair<double, int>> shares;  // by kept: the sum of what was held, and of how many layers
  try {
    if (json.at("schema").get<std::string>() != "hayloft.attention/1") fail("no hayloft.attention/1");
    for (const nlohmann::json& layer : json.value("experts", nlohmann::json::array())) {
      const int experts = layer.at("experts").get<int>();
      for (const nlohmann::json& row : layer.at("held")) {
        const int kept = row.at("kept").get<int>();
        const double held = row.at("mean").get<double>();
        if (kept < 1 || kept > experts || !(held >= 0 && held <= 1)) fail("shares of experts that are none");
        auto& [sum, layers] = shares[static_cast<double>(kept) / experts];
        sum += held, ++layers;
      }
    }
  } catch (const std::exception& wrong) {
    fail("{}: is not what --attention-stats writes as JSON: {}", where, wrong.what());
  }
  if (shares.empty()) {
    fail("{}: says nothing of experts; take it of a model that has them, over more than 16 tokens", where);
  }
  ExpertsHeld held;
  for (const auto& [kept, sum] : shares) held.measured.push_back({kept, sum.first / sum.second});
  return held;
}

}  // namespace hayloft::runtime::plan
