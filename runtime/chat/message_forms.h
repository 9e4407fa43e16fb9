#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace hayloft::runtime {

// The messages of a conversation in the forms that templates are written for, the one that transformers 5 gives first.
// The others have the arguments of tool calls as their text, contents of several text parts as one text, or both. What
// a template made of a form says whether it was written for it.
class MessageForms {
 public:
  // messages: an array. What is no conversation stays as it is, for the template to refuse.
  explicit MessageForms(const nlohmann::ordered_json& messages);

  const std::vector<nlohmann::ordered_json>& forms() const { return forms_; }

  // Counts in a template's text what speaks against the form that it was given: arguments and parts as Python prints
  // objects, and texts and names of arguments that are missing. 0 where nothing does.
  std::size_t objections(std::string_view text) const;

 private:
  void add_signs(std::vector<const nlohmann::ordered_json*> objects, std::vector<const nlohmann::ordered_json*> lists);

  std::vector<nlohmann::ordered_json> forms_;
  std::vector<std::string> unwanted_;  // beginnings of what Python prints
  std::vector<std::string> wanted_;    // beginnings of texts of parts, and names of arguments
};

}  // namespace hayloft::runtime
