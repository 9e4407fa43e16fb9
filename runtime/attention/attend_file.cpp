#include "runtime/attention/attend_file.h"

#include <nlohmann/json.hpp>

namespace hayloft::runtime {
namespace {

nlohmann::ordered_json counters_json(const Counters& counters) {
  nlohmann::ordered_json json;
  json["elements"] = counters.elements;
  json["positions_scored"] = counters.positions_scored;
  json["rows_fetched"] = counters.rows_fetched;
  for (int place = 0; place < place_count; ++place) {
    for (int kind = 0; kind < kind_count; ++kind) {
      json["bytes"][name(static_cast<Place>(place))][name(static_cast<Kind>(kind))] = counters.bytes[place][kind];
    }
  }
  return json;
}

template <class T>
TensorToWrite to_write(const char* name, const char* dtype, std::vector<std::int64_t> shape,
                       const std::vector<T>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

}  // namespace

AttendOutput attend_file(const std::filesystem::path& path, const MethodOptions& options, gpu::Backend& backend,
                         offload::Arena& arena, const AttendStore& store, const AttendProgress& progress) {
  const SafetensorsFile file(path);
  return attend({path.string(), file.at("q"), file.at("k"), file.at("v")}, options, backend, arena, store, progress);
}

void write_attend_output(const std::filesystem::path& path, const AttendOutput& output) {
  const std::int64_t N = output.queries;
  std::vector<TensorToWrite> tensors;
  tensors.push_back(to_write("y", "F32", {N, output.query_heads, output.head_dim}, output.y));
  if (output.lists > 0)
    tensors.push_back(to_write("positions", "I32", {N, output.lists, output.width}, output.positions));
  if (!output.alpha.empty()) tensors.push_back(to_write("alpha", "F32", {N, output.query_heads}, output.alpha));
  write_safetensors(path, tensors);
}

std::string attend_json(const AttendOutput& output) {
  const bool selects = output.lists > 0;
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.attend/1";
  json["attn"] = output.attn.name;
  if (output.by.name != output.attn.name) json["by"] = output.by.name;
  json["r"] = has_rank(output.by) ? nlohmann::ordered_json(output.by.rank) : nullptr;
  json["k"] = selects ? nlohmann::ordered_json(output.width) : nullptr;
  json["window"] = selects ? nlohmann::ordered_json(output.window) : nullptr;
  json["queries"] = output.queries;
  json["tokens"] = output.tokens;
  json["query_heads"] = output.query_heads;
  json["kv_heads"] = output.kv_heads;
  json["head_dim"] = output.head_dim;
  json["counters"] = nlohmann::ordered_json::array();
  for (const Counters& counters : output.counters) json["counters"].push_back(counters_json(counters));
  return json.dump(2) + "\n";
}

}  // namespace hayloft::runtime
