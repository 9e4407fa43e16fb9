#include "runtime/machine/network.h"

#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/list.h"

namespace hayloft::runtime::plan {

Network parse_network(const std::string& text) {
  std::error_code none;
  if (std::filesystem::exists(text, none)) return read_network(text);
  const auto items = split_list(text, ',');
  double numbers[2] = {};
  bool good = items.size() == 2;
  for (std::size_t i = 0; good && i < 2; ++i) {
    const char* const end = items[i].data() + items[i].size();
    const auto [stop, error] = std::from_chars(items[i].data(), end, numbers[i]);
    good = error == std::errc() && stop == end && numbers[i] < 1e6 && (i == 0 ? numbers[i] > 0 : numbers[i] >= 0);
  }
  if (!good)
    fail("--network {}: must be GBIT/S,MICROSECONDS, as in 10,30, or a file that mpirun hayloft link --json wrote",
         text);
  return {numbers[0], numbers[1]};
}

int network_rounds(int ranks) {
  return std::bit_width(static_cast<unsigned>(ranks - 1));
}

Network read_network(const std::filesystem::path& path) {
  const nlohmann::json json = read_json_file(path);
  const JsonFields fields(json, path.string());
  if (fields.text_or("schema", "") != "hayloft.network/1") {
    fail("--network {}: is not what mpirun hayloft link --json wrote", path.string());
  }
  return {fields.positive("Gbitps"), fields.positive("latency_us"), fields.boolean_or("shared_machines", false)};
}

}  // namespace hayloft::runtime::plan
