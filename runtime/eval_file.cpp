#include "runtime/eval_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "offload/error.h"
#include "runtime/json_file.h"

namespace hayloft::runtime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* schema = "hayloft.eval/1";

std::string digest_of(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::string text;
  for (int i = 0; i < 8; ++i) text += fmt::format("{:02x}", canonical.digest[i]);
  return text;
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("{}: cannot be read", path.string());
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) fail("{}: reading failed", path.string());
  return text;
}

// An answer may end in the middle of a character.
std::string one_line(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

std::optional<double> number_or_none(const json& object, const char* name) {
  const json& value = object.at(name);
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

ordered_json method_json(const MethodOptions& method) {
  ordered_json object;
  object["name"] = method.name;
  object["r"] = method.rank;
  object["k"] = method.k.text();
  object["window"] = or_null(method.window);
  object["sinks"] = method.sinks;
  object["mean"] = method.mean_value;
  object["group"] = static_cast<int>(method.rule);
  object["select"] = method.per ? ordered_json(static_cast<int>(*method.per)) : ordered_json(nullptr);
  object["tau"] = static_cast<int>(method.temperature);
  object["faiss"] = method.faiss;
  object["factory"] = method.factory;
  object["nprobe"] = method.probes;
  object["ef"] = method.ef;
  object["rerank"] = method.rerank;
  object["aware"] = method.query_aware;
  object["page"] = method.page;
  object["recent"] = method.recent;
  object["seed"] = method.seed;
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
  method.rule = static_cast<index::GroupRule>(object.at("group").get<int>());
  if (!object.at("select").is_null()) method.per = static_cast<index::SelectPer>(object.at("select").get<int>());
  method.temperature = static_cast<gpu::Temperature>(object.at("tau").get<int>());
  method.faiss = object.at("faiss").get<bool>();
  method.factory = object.at("factory").get<std::string>();
  method.probes = object.at("nprobe").get<int>();
  method.ef = object.at("ef").get<int>();
  method.rerank = object.at("rerank").get<int>();
  method.query_aware = object.at("aware").get<bool>();
  method.page = object.at("page").get<int>();
  method.recent = object.at("recent").get<double>();
  method.seed = object.at("seed").get<std::uint64_t>();
  return method;
}

Measure read_measure(const std::string& text) {
  for (const Measure measure : {Measure::share, Measure::characters, Measure::perplexity}) {
    if (text == name(measure)) return measure;
  }
  throw std::invalid_argument("unknown measure " + text);
}

std::string row_key(const std::string& task, std::int64_t ctx_size, int sample, const MethodOptions& attn) {
  return fmt::format("{} {} {} {}", task, ctx_size, sample, method_key(attn));
}

// What of two recipes is not the same, "seed 1 (here 2)".
std::string difference(const json& there, const json& here) {
  std::string text;
  for (const auto& [field, value] : here.items()) {
    const json other = there.is_object() && there.contains(field) ? there[field] : json();
    if (other != value)
      text += fmt::format("{}{} {} (here {})", text.empty() ? "" : ", ", field, other.dump(), value.dump());
  }
  return text;
}

}  // namespace

std::string recipe_json(const EvalRecipe& recipe) {
  ordered_json object;
  object["version"] = recipe.version;
  object["model"] = recipe.model;
  object["fingerprint"] = recipe.fingerprint;
  object["device"] = recipe.device;
  object["threads"] = recipe.threads;
  object["seed"] = recipe.seed;
  object["digits"] = recipe.digits;
  object["scored_tokens"] = recipe.scored_tokens;
  object["chat_template"] = recipe.chat_template;
  object["haystack"] = recipe.haystack;
  object["squad"] = recipe.squad;
  object["hotpotqa"] = recipe.hotpotqa;
  object["text"] = recipe.text;
  object["jsonl"] = recipe.prepared;
  object["prefill"] = recipe.prefill;
  object["chunk_tokens"] = recipe.chunk_tokens;
  object["block_tokens"] = recipe.block_tokens;
  object["columns"] = recipe.columns;
  object["agreement"] = recipe.agreement;
  object["recall"] = recipe.recall;
  return one_line(object);
}

std::string recipe_digest(const EvalRecipe& recipe) {
  return digest_of(recipe_json(recipe));
}

std::string file_digest(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return digest_of(contents(path));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  if (error) fail("{}: {}", path.string(), error.message());
  std::sort(files.begin(), files.end());
  std::string all;
  for (const auto& file : files)
    all += fmt::format("{} {}\n", file.lexically_relative(path).string(), digest_of(contents(file)));
  return digest_of(all);
}

std::string method_key(const MethodOptions& method) {
  return one_line(method_json(method));
}

std::string eval_row_json(const EvalRow& row, const std::string& recipe) {
  ordered_json object;
  object["task"] = row.task;
  object["sample"] = row.sample;
  object["ctx_size"] = row.ctx_size;
  object["prompt_tokens"] = row.prompt_tokens;
  object["attn"] = method_label(row.attn);
  object["method"] = method_json(row.attn);
  object["k"] = row.k;
  object["window"] = row.window;
  object["measure"] = name(row.measure);
  object["score"] = row.score;
  object["prediction"] = row.prediction;
  object["expected"] = row.expected;
  object["top1"] = or_null(row.top1);
  object["kl"] = or_null(row.kl);
  object["recall"] = or_null(row.recall);
  object["steps"] = row.steps;
  object["elements_per_token"] = row.elements_per_token;
  object["near_bytes_per_token"] = row.near_bytes_per_token;
  object["link_bytes_per_token"] = row.link_bytes_per_token;
  object["ms_per_token"] = row.ms_per_token;
  object["prefill_seconds"] = row.prefill_seconds;
  object["prepare_seconds"] = row.prepare_seconds;
  object["state_bytes"] = row.state_bytes;
  object["recipe"] = recipe;
  return one_line(object);
}

EvalRow parse_eval_row(const std::string& line, const std::string& where) {
  try {
    const json object = json::parse(line);
    EvalRow row;
    row.task = object.at("task").get<std::string>();
    row.sample = object.at("sample").get<int>();
    row.ctx_size = object.at("ctx_size").get<std::int64_t>();
    row.prompt_tokens = object.at("prompt_tokens").get<std::int64_t>();
    row.attn = read_method(object.at("method"));
    row.k = object.at("k").get<std::int64_t>();
    row.window = object.at("window").get<std::int64_t>();
    row.measure = read_measure(object.at("measure").get<std::string>());
    row.score = number_or_none(object, "score").value_or(HUGE_VAL);  // JSON has no infinity
    row.prediction = object.at("prediction").get<std::string>();
    row.expected = object.at("expected").get<std::vector<std::string>>();
    row.top1 = number_or_none(object, "top1");
    row.kl = number_or_none(object, "kl");
    row.recall = number_or_none(object, "recall");
    row.steps = object.at("steps").get<std::int64_t>();
    row.elements_per_token = object.at("elements_per_token").get<double>();
    row.near_bytes_per_token = object.at("near_bytes_per_token").get<double>();
    row.link_bytes_per_token = object.at("link_bytes_per_token").get<double>();
    row.ms_per_token = object.at("ms_per_token").get<double>();
    row.prefill_seconds = object.at("prefill_seconds").get<double>();
    row.prepare_seconds = object.at("prepare_seconds").get<double>();
    row.state_bytes = object.at("state_bytes").get<std::uint64_t>();
    return row;
  } catch (const std::exception& error) {
    fail("{}: damaged: {}", where, printable(error.what()));
  }
}

EvalFile::EvalFile(const std::filesystem::path& path, const EvalRecipe& recipe) : path_(path) {
  const std::string text = recipe_json(recipe);
  digest_ = recipe_digest(recipe);
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("--out {}: cannot be written: {}", path.string(), std::generic_category().message(errno));
  try {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) fail("--out {}: another run is writing to it", path.string());
    read(contents(path), text);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

EvalFile::~EvalFile() {
  ::close(descriptor_);
}

// The first line has the recipe, every other one a row. What stands behind the last newline was cut off.
void EvalFile::read(const std::string& content, const std::string& recipe) {
  const std::string header =
      one_line({{"schema", schema}, {"recipe", digest_}, {"options", ordered_json::parse(recipe)}});
  std::size_t begin = 0;
  int number = 0;
  for (std::size_t end = 0; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
    ++number;
    const std::string line = content.substr(begin, end - begin);
    if (number > 1) {
      rows_.push_back(parse_eval_row(line, fmt::format("--out {}, line {}", path_.string(), number)));
      const EvalRow& row = rows_.back();
      keys_.insert(row_key(row.task, row.ctx_size, row.sample, row.attn));
      continue;
    }
    const json there = json::parse(line, nullptr, false);
    if (!there.is_object() || there.value("schema", "") != schema) {
      fail("--out {}: is there already and is no file of hayloft eval", path_.string());
    }
    if (there.value("recipe", "") != digest_) {
      fail("--out {}: was written by another recipe: {}; name another file or use the same options", path_.string(),
           printable(difference(there.value("options", json()), json::parse(recipe))));
    }
  }
  const bool fresh = number == 0;
  if (fresh && !content.empty() && header.compare(0, std::min(content.size(), header.size()), content) != 0) {
    fail("--out {}: is there already and is no file of hayloft eval", path_.string());
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(begin)) != 0 || ::lseek(descriptor_, 0, SEEK_END) < 0) {
    fail("--out {}: cannot be written: {}", path_.string(), std::generic_category().message(errno));
  }
  if (fresh) write(header);
}

bool EvalFile::has(const std::string& task, std::int64_t ctx_size, int sample, const MethodOptions& attn) const {
  return keys_.count(row_key(task, ctx_size, sample, attn)) > 0;
}

void EvalFile::add(const EvalRow& row) {
  write(eval_row_json(row, digest_));
  keys_.insert(row_key(row.task, row.ctx_size, row.sample, row.attn));
  rows_.push_back(row);
}

void EvalFile::write(const std::string& line) {
  const std::string whole = line + '\n';
  for (std::size_t done = 0; done < whole.size();) {
    const ssize_t written = ::write(descriptor_, whole.data() + done, whole.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("--out {}: cannot be written: {}", path_.string(), std::generic_category().message(errno));
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace hayloft::runtime
