#include "runtime/chat/jinja/values/to_json.h"

#include <algorithm>
#include <cmath>

#include "offload/error.h"
#include "offload/text/utf8.h"

namespace hayloft::runtime::jinja {
namespace {

void append_quoted(const std::string& text, bool ascii, std::string& out) {
  out += '"';
  const auto escape = [&](std::uint32_t unit) { out += fmt::format("\\u{:04x}", unit); };
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    const auto code = static_cast<std::uint32_t>(next.code);
    if (code == '"' || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code >= 0x20 && (code < 0x7F || !ascii)) {
      out.append(text, at, next.length);
    } else if (const auto known = std::string_view("\b\f\n\r\t").find(static_cast<char>(code));
               code < 0x20 && known != std::string_view::npos) {
      out += '\\';
      out += "bfnrt"[known];
    } else if (code < 0x10000) {
      escape(code);
    } else {
      escape(0xD800 + ((code - 0x10000) >> 10));
      escape(0xDC00 + ((code - 0x10000) & 0x3FF));
    }
    at += next.length;
  }
  out += '"';
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    switch (value.kind()) {
      case Kind::none:
        out += "null";
        return;
      case Kind::boolean:
        out += value.boolean() ? "true" : "false";
        return;
      case Kind::integer:
        out += std::to_string(value.integer());
        return;
      case Kind::real:
        out += real(value.real());
        return;
      case Kind::long_integer:
        out += value.digits();
        return;
      case Kind::text:
        append_quoted(value.text(), style_.ascii, out);
        return;
      case Kind::list:
      case Kind::tuple:
        group('[', ']', value.items(), [&](const Value& item) { write(item); });
        return;
      case Kind::dict: {
        std::vector<std::pair<Value, Value>> sorted;
        if (style_.sorted) {
          sorted = value.entries().items;
          std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
            const auto order = compare(a.first, b.first);
            if (!order) fail("'tojson' cannot sort keys of different types");
            return *order < 0;
          });
        }
        group('{', '}', style_.sorted ? sorted : value.entries().items, [&](const auto& entry) {
          append_quoted(key(entry.first), style_.ascii, out);
          out += style_.behind_key;
          write(entry.second);
        });
        return;
      }
      case Kind::undefined:
        fail("'tojson' is given an undefined value: {}", value.absence());
      default:
        fail("'tojson' cannot write a value of type {}", value.type_name());
    }
  }

  std::string out;

 private:
  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return to_text(value);
  }

  static std::string key(const Value& value) {
    switch (value.kind()) {
      case Kind::text:
        return value.text();
      case Kind::none:
        return "null";
      case Kind::boolean:
        return value.boolean() ? "true" : "false";
      case Kind::integer:
        return std::to_string(value.integer());
      case Kind::real:
        return real(value.real());
      default:
        fail("'tojson' cannot write a key of type {}", value.type_name());
    }
  }

  template <class Items, class Each>
  void group(char open, char close, const Items& items, Each&& each) {
    out += open;
    ++level_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out += style_.between;
      first = false;
      new_line();
      each(item);
    }
    --level_;
    if (!first) new_line();
    out += close;
  }

  void new_line() {
    if (!style_.indent) return;
    out += '\n';
    out.append(static_cast<std::size_t>(*style_.indent * level_), ' ');
  }

  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.write(value);
  return std::move(writer.out);
}

}  // namespace hayloft::runtime::jinja
