#include "runtime/tokenizer/template.h"

#include "runtime/tokenizer/json.h"

namespace hayloft::runtime {
namespace {

Template read_template(const Field& step) {
  Template around;
  bool text_seen = false;
  for (const Field& piece : step.at("single").elements()) {
    if (const auto token = piece.find("SpecialToken")) {
      const std::string& name = token->at("id").text();
      auto& side = text_seen ? around.after : around.before;
      for (const Field& id : step.at("special_tokens").at(name).at("ids").elements()) side.push_back(id.token_id());
    } else {
      const std::string& sequence = piece.at("Sequence").at("id").text();
      if (sequence != "A" || text_seen) fail("{}: a single text stands once, as sequence A", piece.where());
      text_seen = true;
    }
  }
  if (!text_seen) fail("{}.single: has no place for the text", step.where());
  return around;
}

TokenId read_pair(const Field& pair) {  // ["</s>", 2]
  const auto elements = pair.elements();
  if (elements.size() != 2) fail("{}: expected a token and its id", pair.where());
  return elements[1].token_id();
}

}  // namespace

Template::Template(const Field& post_processor) {
  for (const Field& step : flatten_sequence(post_processor, "processors")) {
    const std::string& type = step.at("type").text();
    Template around;
    if (type == "TemplateProcessing") {
      around = read_template(step);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      around.before = {read_pair(step.at("cls"))};
      around.after = {read_pair(step.at("sep"))};
    } else if (type != "ByteLevel") {  // which only corrects offsets
      fail("{}: a post-processor of type '{}' is not supported", step.where(), printable(type));
    }
    before.insert(before.begin(), around.before.begin(), around.before.end());
    after.insert(after.end(), around.after.begin(), around.after.end());
  }
}

}  // namespace hayloft::runtime
