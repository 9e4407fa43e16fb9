#include "runtime/eval/json.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/json_text.h"
#include "offload/text_file.h"
#include "runtime/attention/method_option_table.h"
#include "runtime/fidelity/attention_statement.h"

namespace hayloft::runtime::eval {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::optional<double> number_or_none(const json& object, const char* name) {
  const json& value = object.at(name);
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

struct MeasureName {
  const char* name;
  Measure measure;
};
constexpr MeasureName measures[] = {{"share", Measure::share},
                                    {"characters", Measure::characters},
                                    {"perplexity", Measure::perplexity},
                                    {"bits", Measure::bits}};

Measure measure_named(const json& text) {
  for (const MeasureName& each : measures) {
    if (text == each.name) return each.measure;
  }
  throw std::invalid_argument("unknown measure " + text.dump());
}

ordered_json method_json(const MethodOptions& method) {
  ordered_json object;
  object["name"] = method.name;
  object["r"] = method.rank;
  object["k"] = method.k.text();
  object["window"] = json_or_null(method.window);
  object["sinks"] = method.sinks;
  object["mean"] = method.mean_value;
  object["group"] = runtime::name(method.rule);
  object["select"] = method.per ? ordered_json(runtime::name(*method.per)) : ordered_json(nullptr);
  object["tau"] = runtime::name(method.temperature);
  object["faiss"] = method.faiss;
  object["factory"] = method.factory;
  object["nprobe"] = method.probes;
  object["ef"] = method.ef;
  object["rerank"] = method.rerank;
  object["aware"] = method.query_aware;
  object["page"] = method.page;
  object["recent"] = method.recent;
  object["seed"] = method.seed;
  object["bits"] = method.bits;
  object["by"] = runtime::name(method.order);
  if (method.rest) object["rest"] = runtime::name(*method.rest);
  return object;
}

MethodOptions read_method(const json& object) {
  MethodOptions method;
  method.name = object.at("name").get<std::string>();
  method.rank = object.at("r").get<int>();
  method.k = parse_budgets(object.at("k").get<std::string>(), "k");
  if (!object.at("window").is_null()) method.window = object.at("window").get<std::int64_t>();
  method.sinks = object.at("sinks").get<std::int64_t>();
  method.mean_value = object.at("mean").get<bool>();
  for (const char* key : {"group", "select", "tau"}) {
    const json& word = object.at(key);
    if (!word.is_null()) read_method_option(*find_method_option(key), method, word.get<std::string>(), key);
  }
  method.faiss = object.at("faiss").get<bool>();
  method.factory = object.at("factory").get<std::string>();
  method.probes = object.at("nprobe").get<int>();
  method.ef = object.at("ef").get<int>();
  method.rerank = object.at("rerank").get<int>();
  method.query_aware = object.at("aware").get<bool>();
  method.page = object.at("page").get<int>();
  method.recent = object.at("recent").get<double>();
  method.seed = object.at("seed").get<std::uint64_t>();
  // Files of before there were planes have neither.
  method.bits = object.value("bits", method.bits);
  if (object.contains("by"))
    read_method_option(*find_method_option("by"), method, object.at("by").get<std::string>(), "by");
  if (object.contains("rest"))
    read_method_option(*find_method_option("rest"), method, object.at("rest").get<std::string>(), "rest");
  return method;
}

// Throws std::invalid_argument on figures that no run has.
void require_possible(const EvalRow& row) {
  const auto require = [](const char* field, double value, double most) {
    constexpr double rounding = 1e-3;  // of a mass, whose parts are summed in f32
    if (value >= 0 && value <= most + rounding) return;
    throw std::invalid_argument(fmt::format("{} cannot be {}", field, value));
  };
  require("score", row.score, row.measure == Measure::share ? 1 : HUGE_VAL);
  require("attended_share", row.attended_share, 1);
  for (const auto& [field, share] : {std::pair{"top1", row.top1}, {"recall", row.recall}, {"mass", row.mass}}) {
    if (share) require(field, *share, 1);
  }
  if (row.kl) require("kl", *row.kl, HUGE_VAL);
  require("ctx_size", static_cast<double>(row.ctx_size), HUGE_VAL);
  require("steps", static_cast<double>(row.steps), HUGE_VAL);
  require("near_bytes_per_token", row.near_bytes_per_token, HUGE_VAL);
  require("link_bytes_per_token", row.link_bytes_per_token, HUGE_VAL);
}

}  // namespace

const char* name(Measure measure) {
  return std::find_if(std::begin(measures), std::end(measures) - 1,
                      [&](const auto& each) { return each.measure == measure; })
      ->name;
}

std::string recipe_json(const EvalRecipe& recipe) {
  ordered_json object;
  object["version"] = recipe.version;
  object["model"] = recipe.model;
  object["fingerprint"] = recipe.fingerprint;
  object["device"] = recipe.device;
  object["threads"] = recipe.threads;
  if (recipe.ranks > 1) object["ranks"] = recipe.ranks;
  object["seed"] = recipe.seed;
  object["digits"] = recipe.digits;
  object["scored_tokens"] = recipe.scored_tokens;
  if (recipe.needles > 0) object["needles"] = recipe.needles;
  object["chat_template"] = recipe.chat_template;
  object["haystack"] = recipe.haystack;
  object["squad"] = recipe.squad;
  object["hotpotqa"] = recipe.hotpotqa;
  if (!recipe.triviaqa.empty()) object["triviaqa"] = recipe.triviaqa;
  if (!recipe.cnn_dailymail.empty()) object["cnn_dailymail"] = recipe.cnn_dailymail;
  object["text"] = recipe.text;
  object["jsonl"] = recipe.prepared;
  object["prefill"] = recipe.prefill;
  if (recipe.weights != "stored") object["weights"] = recipe.weights;
  if (recipe.products != gpu::Products::exact) object["products"] = gpu::name(recipe.products);
  if (!recipe.drafts.empty()) object["drafts"] = recipe.drafts;
  object["chunk_tokens"] = recipe.chunk_tokens;
  object["block_tokens"] = recipe.block_tokens > 0 ? ordered_json(recipe.block_tokens) : ordered_json("by length");
  object["columns"] = recipe.columns;
  if (recipe.rows != "f16") object["rows"] = recipe.rows;
  object["agreement"] = recipe.agreement;
  object["fidelity"] = recipe.fidelity;
  if (recipe.auto_fidelity > 0) object["auto_fidelity"] = recipe.auto_fidelity;
  return json_line(object);
}

std::string text_digest(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return fmt::format("{:02x}", fmt::join(std::span(canonical.digest).first<8>(), ""));
}

std::string recipe_digest(const EvalRecipe& recipe) {
  return text_digest(recipe_json(recipe));
}

std::string file_digest(const std::string& option, const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return text_digest(offload::read_file_bytes(option, path));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  if (error) fail("{} {}: {}", option, path.string(), error.message());
  std::sort(files.begin(), files.end());
  std::string all;
  for (const auto& file : files)
    all += fmt::format("{} {}\n", file.lexically_relative(path).string(),
                       text_digest(offload::read_file_bytes(option, file)));
  return text_digest(all);
}

std::string method_key(const MethodOptions& method) {
  return json_line(method_json(method));
}

std::string eval_row_json(const EvalRow& row, const std::string& recipe) {
  ordered_json object;
  object["task"] = row.task;
  object["sample"] = row.sample;
  object["ctx_size"] = row.ctx_size;
  object["prompt_tokens"] = row.prompt_tokens;
  if (row.depth) object["depth"] = *row.depth;
  object["block_tokens"] = row.block_tokens;
  object["prefill"] = row.prefill;
  if (row.read_whole) object["read_whole"] = true;
  object["attn"] = method_label(row.attn);
  object["method"] = method_json(row.attn);
  object["k"] = row.k;
  object["window"] = row.window;
  object["measure"] = name(row.measure);
  object["score"] = row.score;
  object["prediction"] = row.prediction;
  object["expected"] = row.expected;
  object["top1"] = json_or_null(row.top1);
  object["kl"] = json_or_null(row.kl);
  if (!row.accepted_shares.empty()) {
    object["accepted_of_12"] = std::accumulate(row.accepted_shares.begin(), row.accepted_shares.end(), 0.0);
    object["accepted_by_position"] = row.accepted_shares;
  }
  object["recall"] = json_or_null(row.recall);
  object["mass"] = json_or_null(row.mass);
  object["output_error"] = json_or_null(row.output_error);
  if (row.error_within) {
    object["error_auc"] = json_or_null(row.error_auc);
    object["error_within_3"] = json_or_null(row.error_within);
  }
  object["steps"] = row.steps;
  object["attended_share"] = row.attended_share;
  object["attention"] = attention_statement(row.attended_share, method_label(row.attn), row.mass, row.products,
                                            row.prefill == "exact" || row.read_whole ? "" : row.prefill, row.rows);
  if (row.products != gpu::Products::exact) object["products"] = gpu::name(row.products);
  if (row.rows != offload::RowFormat::f16) object["rows"] = offload::name(row.rows);
  if (row.drafts) {
    object["passes"] = row.drafts->passes;
    object["drafted"] = row.drafts->drafted;
    object["accepted"] = row.drafts->accepted;
  }
  object["elements_per_token"] = row.elements_per_token;
  object["positions_scored_per_token"] = row.positions_scored_per_token;
  object["near_bytes_per_token"] = row.near_bytes_per_token;
  object["link_bytes_per_token"] = row.link_bytes_per_token;
  object["ms_per_token"] = row.ms_per_token;
  object["prefill_seconds"] = row.prefill_seconds;
  object["prepare_seconds"] = row.prepare_seconds;
  object["state_bytes"] = row.state_bytes;
  if (row.network_messages_per_token > 0) {  // of ranks
    object["network_messages_per_token"] = row.network_messages_per_token;
    object["network_sent_bytes_per_token"] = row.network_sent_per_token;
    object["network_received_bytes_per_token"] = row.network_received_per_token;
  }
  object["recipe"] = recipe;
  return json_line(object);
}

EvalRow parse_eval_row(const std::string& line, const std::string& recipe, const std::string& where) {
  try {
    const json object = json::parse(line);
    if (object.at("recipe") != recipe) throw std::invalid_argument("of recipe " + object.at("recipe").dump());
    EvalRow row;
    row.task = object.at("task").get<std::string>();
    row.sample = object.at("sample").get<int>();
    row.ctx_size = object.at("ctx_size").get<std::int64_t>();
    row.prompt_tokens = object.at("prompt_tokens").get<std::int64_t>();
    if (object.contains("depth")) row.depth = object.at("depth").get<double>();
    row.block_tokens = object.at("block_tokens").get<int>();
    row.prefill = object.at("prefill").get<std::string>();
    row.read_whole = object.value("read_whole", false);
    row.attn = read_method(object.at("method"));
    row.k = object.at("k").get<std::int64_t>();
    row.window = object.at("window").get<std::int64_t>();
    row.measure = measure_named(object.at("measure"));
    row.score = number_or_none(object, "score").value_or(HUGE_VAL);  // JSON has no infinity
    row.prediction = object.at("prediction").get<std::string>();
    row.expected = object.at("expected").get<std::vector<std::string>>();
    row.top1 = number_or_none(object, "top1");
    row.kl = number_or_none(object, "kl");
    if (object.contains("accepted_by_position")) {
      row.accepted_shares = object["accepted_by_position"].get<std::vector<double>>();
    }
    row.recall = number_or_none(object, "recall");
    row.mass = number_or_none(object, "mass");
    row.output_error = number_or_none(object, "output_error");
    if (object.contains("error_within_3")) {
      row.error_auc = number_or_none(object, "error_auc");
      row.error_within = number_or_none(object, "error_within_3");
    }
    row.steps = object.at("steps").get<std::int64_t>();
    row.attended_share = object.at("attended_share").get<double>();
    if (object.value("products", "exact") == "int8") row.products = gpu::Products::int8;
    const std::string rows = object.value("rows", "f16");
    if (!offload::row_format(rows)) throw std::invalid_argument(fmt::format("rows cannot be {}", rows));
    row.rows = *offload::row_format(rows);
    if (object.contains("passes")) {
      row.drafts.emplace();
      row.drafts->passes = object["passes"].get<std::int64_t>();
      row.drafts->drafted = object.at("drafted").get<std::int64_t>();
      row.drafts->accepted = object.at("accepted").get<std::int64_t>();
    }
    row.elements_per_token = object.at("elements_per_token").get<double>();
    row.positions_scored_per_token = object.at("positions_scored_per_token").get<double>();
    row.near_bytes_per_token = object.at("near_bytes_per_token").get<double>();
    row.link_bytes_per_token = object.at("link_bytes_per_token").get<double>();
    row.ms_per_token = object.at("ms_per_token").get<double>();
    row.prefill_seconds = object.at("prefill_seconds").get<double>();
    row.prepare_seconds = object.at("prepare_seconds").get<double>();
    row.state_bytes = object.at("state_bytes").get<std::uint64_t>();
    row.network_messages_per_token = object.value("network_messages_per_token", 0.0);
    row.network_sent_per_token = object.value("network_sent_bytes_per_token", 0.0);
    row.network_received_per_token = object.value("network_received_bytes_per_token", 0.0);
    require_possible(row);
    return row;
  } catch (const std::exception& error) {
    fail("{}: damaged: {}", where, printable(error.what()));
  }
}

}  // namespace hayloft::runtime::eval
