#include "runtime/context/column_choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/clock.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/context/measure_columns.h"

namespace hayloft::runtime {
namespace {

std::string named_setting(const ColumnSetting& setting) {
  const bool planes = offload::traits_of(setting.columns).planes > 1;
  return fmt::format("{} {} of {} columns", setting.size, planes ? "bits" : "components",
                     offload::name(setting.columns));
}

}  // namespace

std::int64_t choosing_tokens(std::int64_t tokens, int chunk_tokens) {
  const std::int64_t whole = std::min(tokens, most_choosing_tokens) / chunk_tokens * chunk_tokens;
  return whole < fewest_choosing_tokens ? 0 : whole;
}

std::int64_t choosing_tokens(const ModelConfig& config, const SessionOptions& options, std::int64_t tokens) {
  const bool possible = remakes_columns(options.cache) && config.global_layers() > 0 &&
                        options.prefill.order != PrefillOptions::Order::layer;
  return possible ? choosing_tokens(tokens, options.chunk_tokens) : 0;
}

Session read_choosing(const Model& model, offload::Arena& arena, SessionOptions& options,
                      std::span<const std::int32_t> tokens, const PrefillProgress& progress, ColumnChoice& choice) {
  Session session(model, arena, options);
  const std::int64_t first = choosing_tokens(model.config(), options, static_cast<std::int64_t>(tokens.size()));
  if (first == 0) return session;
  const SharedMethod sample = make_query_sample();
  session.attach_method(*sample);
  const auto whole = static_cast<std::int64_t>(tokens.size()) / options.chunk_tokens * options.chunk_tokens;
  while (session.tokens() < first) {
    session.append(
        tokens.subspan(static_cast<std::size_t>(session.tokens()), static_cast<std::size_t>(options.chunk_tokens)), {},
        /*more_follows=*/session.tokens() + options.chunk_tokens < whole);
    if (progress) progress(session.tokens(), static_cast<std::int64_t>(tokens.size()));
  }
  const Clock::time_point start = Clock::now();
  auto recall = std::make_shared<ColumnRecall>(measure_columns(session, *sample, model.backend()));
  session.detach_method(*sample);
  recall->chosen = choose_columns(*recall);
  if (recall->chosen) {
    session.use_columns(recall->chosen->columns, arena);
    options.cache.columns = recall->chosen->columns;
  }
  choice.recall = std::move(recall);
  choice.seconds = seconds_since(start);
  return session;
}

std::shared_ptr<const ColumnRecall> saved_column_recall(const offload::Snapshot& snapshot) {
  try {
    const auto saved = snapshot.attachment(column_recall_name);
    return saved ? std::make_shared<ColumnRecall>(load_column_recall(*saved)) : nullptr;
  } catch (const Error&) {
    return nullptr;  // --verify says what is damaged
  }
}

MethodOptions with_column_recall(MethodOptions method, std::shared_ptr<const ColumnRecall> recall) {
  if (method.name != "auto" || !recall) return method;
  if (recall->chosen) {
    int& size = offload::traits_of(recall->chosen->columns).planes > 1 ? method.bits : method.rank;
    size = std::max(size, recall->chosen->size);
  }
  method.recall = std::move(recall);
  return method;
}

SharedMethod with_column_recall(const SharedMethod& method, const offload::Snapshot& snapshot) {
  if (method->options().name != "auto") return method;
  return make_method(with_column_recall(method->options(), saved_column_recall(snapshot)),
                     snapshot.description().shape.head_dim);
}

nlohmann::ordered_json column_recall_json(const ColumnRecall& recall) {
  const auto setting_json = [](const ColumnSetting& setting) {
    nlohmann::ordered_json json;
    json["columns"] = offload::name(setting.columns);
    json[offload::traits_of(setting.columns).planes > 1 ? "bits" : "components"] = setting.size;
    return json;
  };
  nlohmann::ordered_json json;
  json["tokens"] = recall.tokens;
  json["queries_per_layer"] = recall.queries;
  json["k"] = recall.k;
  json["chosen"] = recall.chosen ? setting_json(*recall.chosen) : nlohmann::ordered_json();
  json["settings"] = nlohmann::ordered_json::array();
  for (const MeasuredSetting& each : recall.settings) {
    nlohmann::ordered_json one = setting_json(each.setting);
    one["bits_per_position"] = each.setting.bits();
    one["recall"] = each.mean();
    one["recall_by_layer"] = each.recall;
    json["settings"].push_back(std::move(one));
  }
  return json;
}

std::string column_recall_table(const ColumnRecall& recall) {
  std::string text = fmt::format("recall of the true top {} behind {} tokens, in percent, mean and by layer:\n",
                                 recall.k, recall.tokens);
  for (const MeasuredSetting& each : recall.settings) {
    text += fmt::format("{} {:30} {:4.0f} |", recall.chosen == each.setting ? "*" : " ", named_setting(each.setting),
                        100 * each.mean());
    for (const float share : each.recall) text += fmt::format(" {:.0f}", 100 * share);
    text += "\n";
  }
  text += recall.chosen ? "* chosen\n" : "none is good enough: the columns are f16\n";
  return text;
}

std::string column_choice_line(const ColumnChoice& choice, double reading_seconds) {
  if (!choice.recall) return {};
  const ColumnRecall& recall = *choice.recall;
  std::string cost = fmt::format("measured behind {} tokens in {:.1f} s", recall.tokens, choice.seconds);
  if (reading_seconds > 0) cost += fmt::format(", {:.1f}% of the reading", 100 * choice.seconds / reading_seconds);
  if (!recall.chosen) {
    return fmt::format("columns: f16, as no cheaper selection finds enough of the true top {}; {}", recall.k, cost);
  }
  const auto by = std::ranges::find(recall.settings, *recall.chosen, &MeasuredSetting::setting);
  return fmt::format("columns: {}, as {} find {:.0f}% of the true top {}; {}", offload::name(recall.chosen->columns),
                     named_setting(*recall.chosen), 100 * by->mean(), recall.k, cost);
}

}  // namespace hayloft::runtime
