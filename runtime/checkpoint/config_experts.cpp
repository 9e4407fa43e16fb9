// Reads what a config.json says of its mixtures of experts.
#include <algorithm>
#include <string_view>

#include "offload/error.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {
namespace {

constexpr std::int64_t most_experts_width = 1 << 14;  // so that what those of a token make stays within an int
constexpr std::int64_t most_rows = (std::int64_t{1} << 31) - 1;

// Reads which layers have an MLP of their own in place of experts, and how wide it is.
void read_dense_layers(const JsonFields& fields, ModelConfig& config) {
  const std::int64_t step = fields.integer_or("decoder_sparse_step", 1, 1, most_layers);
  std::vector<bool> dense(static_cast<std::size_t>(config.layers));
  for (int layer = 0; layer < config.layers; ++layer) dense[static_cast<std::size_t>(layer)] = (layer + 1) % step != 0;
  if (const nlohmann::json* const listed = fields.find("mlp_only_layers")) {
    if (!listed->is_array()) fields.refuse("mlp_only_layers", *listed, "a list of layers");
    for (const nlohmann::json& entry : *listed) {
      std::int64_t layer = 0;
      if (!read_integer(entry, 0, config.layers - 1, layer)) {
        fields.refuse("mlp_only_layers", entry, fmt::format("a list of layers, 0 to {}", config.layers - 1));
      }
      dense[static_cast<std::size_t>(layer)] = true;
    }
  }
  fields.find("intermediate_size");  // which is in every file
  if (std::ranges::find(dense, true) == dense.end()) return;
  config.experts.dense = std::move(dense);
  config.experts.dense_inner = static_cast<int>(fields.integer("intermediate_size", 1, most_width));
}

}  // namespace

bool has_experts(const JsonFields& fields, const ExpertFields& has) {
  if (has.count == 0 || has.enabling_field.empty()) return has.count > 0;
  if (fields.boolean_or(has.enabling_field.c_str(), false)) return true;
  // A model that has none has the fields all the same.
  for (const std::string& name : {has.count_field, has.used_field, has.inner_field}) fields.find(name.c_str());
  return false;
}

void read_experts(const JsonFields& fields, const ExpertFields& has, ModelConfig& config) {
  const auto size = [&](const char* name, int absent, int least = 1) {
    if (has.enabling_field.empty()) return static_cast<int>(fields.integer_or(name, absent, least, most_experts_width));
    return static_cast<int>(fields.integer(name, least, most_experts_width));
  };
  Experts& experts = config.experts;
  // transformers writes the number by either name.
  const std::string& own = has.count_field;
  const char* const other = own == "num_experts" ? "num_local_experts" : "num_experts";
  const bool by_other = !fields.find(own.c_str()) && (own == "num_experts" || own == "num_local_experts");
  experts.count = size(by_other && fields.find(other) ? other : own.c_str(), has.count);
  experts.used = size(has.used_field.c_str(), has.used);
  experts.inner = size(has.inner_field.c_str(), has.inner);
  if (has.shared_inner > 0) experts.shared_inner = size("shared_expert_intermediate_size", has.shared_inner, 0);
  experts.share_of_chosen = has.shares == ExpertShares::as_said ? fields.boolean_or("norm_topk_prob", false)
                                                                : has.shares == ExpertShares::of_chosen;
  if (fields.boolean_or("norm_topk_prob", experts.share_of_chosen) != experts.share_of_chosen) {
    fields.refuse("norm_topk_prob", !experts.share_of_chosen,
                  fmt::format("{} or absent for the architecture {}", experts.share_of_chosen, config.architecture));
  }
  if (experts.used > experts.count) {
    fail("{}: {} {} is more than the {} experts there are", fields.where(), has.used_field, experts.used,
         experts.count);
  }
  require_experts(fields.where(), config);
  if (has.some_dense) read_dense_layers(fields, config);
  if (has.beside_mlp) experts.beside_inner = static_cast<int>(fields.integer("intermediate_size", 1, most_width));
  config.intermediate_size =
      std::max(experts.used * experts.inner + experts.shared_inner + experts.beside_inner, experts.dense_inner);
}

void require_experts(const std::string& where, const ModelConfig& config) {
  const Experts& experts = config.experts;
  const std::int64_t rows = std::int64_t{experts.count} * std::max(2 * experts.inner, config.hidden_size);
  if (rows > most_rows) fail("{}: experts of {} rows together, more than {}", where, rows, most_rows);
}

void refuse_unread_experts(const JsonFields& fields, const ModelConfig& config) {
  if (config.experts.count == 0) return;
  struct Meaning {
    std::string_view name;
    nlohmann::json neutral;  // with which it says what is computed anyway
  };
  const Meaning meanings[] = {
      {"num_experts", config.experts.count},
      {"num_local_experts", config.experts.count},
      {"n_routed_experts", config.experts.count},
      {"experts_per_token", config.experts.used},
      {"top_k_experts", config.experts.used},
      {"moe_intermediate_size", config.experts.inner},
      {"n_shared_experts", 0},
      {"num_shared_experts", 0},
      {"shared_intermediate_size", 0},
      {"shared_expert_intermediate_size", 0},
      {"mlp_only_layers", nlohmann::json::array()},
      {"decoder_sparse_step", 1},
      {"first_k_dense_replace", 0},
      {"moe_layer_freq", 1},
      {"moe_layers", nullptr},
      {"n_group", 1},
      {"topk_group", 1},
      {"routed_scaling_factor", 1},
      {"scoring_func", "softmax"},
      {"moe_router_use_sigmoid", false},
      {"use_router_bias", false},
      {"moe_bias", false},
      {"num_zero_experts", 0},
  };
  for (const std::string& name : fields.unread()) {
    const auto found = std::ranges::find(meanings, std::string_view(name), &Meaning::name);
    if (found == std::end(meanings)) continue;
    const nlohmann::json* const value = fields.find(name.c_str());
    if (!value || *value == found->neutral) continue;
    fields.refuse(
        name.c_str(), *value,
        fmt::format("{} or absent: {} computes nothing else here", found->neutral.dump(), config.architecture));
  }
}

}  // namespace hayloft::runtime
