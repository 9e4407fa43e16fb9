#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "runtime/chat/jinja/limits.h"

namespace hayloft::runtime::jinja {

// A Jinja template as transformers runs chat templates: trim_blocks and lstrip_blocks, break and continue, the block
// `generation`, the functions raise_exception, strftime_now, namespace, dict and range, tojson without HTML escapes,
// and nothing that changes a list or an object. The subset that real chat templates use, with the result that Jinja 3.1
// gives; what is outside of it is refused by name and line. Immutable and thread-safe.
class Template {
 public:
  // source is UTF-8; name is used in messages. Throws Error naming it and the line.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // variables: an object. now: what strftime_now writes. Throws Error naming the template and the line, also when the
  // template itself refuses (raise_exception) or goes beyond a limit.
  std::string render(const nlohmann::ordered_json& variables, std::time_t now = std::time(nullptr),
                     const Limits& limits = {}) const;

  // Returns whether `word` stands in its code: as a variable, an attribute or a whole text literal.
  bool names(std::string_view word) const;

 private:
  struct Parsed;
  std::string name_;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace hayloft::runtime::jinja
