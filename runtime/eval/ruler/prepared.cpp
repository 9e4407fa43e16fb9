#include "runtime/eval/ruler/prepared.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <sstream>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text_file.h"

namespace hayloft::runtime::eval {
namespace {

constexpr std::int64_t longest = std::int64_t{1} << 30;  // tokens

std::string task_name(const std::filesystem::path& file) {
  const std::string name = file.stem().string();
  if (name != "validation" && name != "test") return name;
  const std::string folder = std::filesystem::absolute(file).parent_path().filename().string();
  return folder.empty() ? name : folder;
}

RulerSample read_sample(const nlohmann::json& object, const std::string& where) {
  const JsonFields fields(object, where);
  RulerSample sample;
  sample.input = fields.text("input");
  sample.answer_prefix = fields.text_or("answer_prefix", "");
  if (sample.input.empty() && sample.answer_prefix.empty())
    fields.refuse("input", object.at("input"), "a text to answer");
  sample.length = fields.integer("length", 1, longest);
  const nlohmann::json* const outputs = fields.find("outputs");
  const nlohmann::json none;
  if (!outputs || !outputs->is_array() || outputs->empty()) {
    fields.refuse("outputs", outputs ? *outputs : none, "a list of one reference or more");
  }
  for (const nlohmann::json& output : *outputs) {
    if (!output.is_string()) fields.refuse("outputs", output, "a list of texts");
    sample.outputs.push_back(output.get<std::string>());
    if (sample.outputs.back().find_first_not_of(" \t\r\n") == std::string::npos) {
      fields.refuse("outputs", output, "texts that are not blank, which nearly every answer has");
    }
  }
  return sample;
}

}  // namespace

PreparedSamples read_prepared_samples(const std::filesystem::path& file) {
  std::istringstream lines(offload::read_text_file("--jsonl", file));
  PreparedSamples prepared;
  prepared.task = task_name(file);
  if (const RulerTask* task = find_ruler_task(prepared.task)) {
    prepared.answer_tokens = task->answer_tokens;
    prepared.credit = task->credit;
  } else if (prepared.task.find("qa") != std::string::npos) {
    prepared.credit = Credit::any;
  }
  std::int64_t length = 1;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("--jsonl {}, line {}", file.string(), number);
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_discarded()) fail("{}: not JSON", where);
    prepared.samples.push_back(read_sample(object, where));
    length = std::max(length, prepared.samples.back().length);
  }
  if (prepared.samples.empty()) fail("--jsonl {}: there is no sample in it", file.string());
  prepared.ctx_size = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(length)));
  return prepared;
}

}  // namespace hayloft::runtime::eval
