#include "runtime/machine/gpu_check/gpu_check_line.h"

#include "offload/text/text_table.h"

namespace hayloft::runtime::plan {

const char* name(Verdict verdict) {
  switch (verdict) {
    case Verdict::met:
      return "met";
    case Verdict::missed:
      return "NOT met";
    case Verdict::unmeasured:
      return "not measured";
    case Verdict::no_bar:
      break;
  }
  return "";
}

std::string shown_table(const std::vector<Shown>& lines) {
  TextTable table{{"what the run must show", "figure", "wanted", "verdict"}};
  for (const Shown& line : lines) table.push_back({line.what, line.figure, line.wanted, name(line.verdict)});
  return markdown(table);
}

nlohmann::ordered_json shown_json(const std::vector<Shown>& lines) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Shown& line : lines) {
    json.push_back(
        {{"what", line.what}, {"figure", line.figure}, {"wanted", line.wanted}, {"verdict", name(line.verdict)}});
  }
  return json;
}

}  // namespace hayloft::runtime::plan
