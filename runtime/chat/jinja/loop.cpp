#include "runtime/chat/jinja/values/objects.h"

namespace hayloft::runtime::jinja {

Value Loop::attribute(std::string_view name) const {
  const List& items = turns.items();
  const std::size_t length = items.size();
  if (name == "index") return index0 + 1;
  if (name == "index0") return index0;
  if (name == "revindex") return length - index0;
  if (name == "revindex0") return length - index0 - 1;
  if (name == "first") return index0 == 0;
  if (name == "last") return index0 + 1 == length;
  if (name == "length") return length;
  if (name == "depth" || name == "depth0") return name == "depth" ? 1 : 0;  // of recursion, which is not supported
  if (name == "previtem") return index0 > 0 ? items[index0 - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return index0 + 1 < length ? items[index0 + 1] : Value::undefined("there is no next item");
  return Value::undefined("loop has no '" + std::string(name) + "'");
}

}  // namespace hayloft::runtime::jinja
