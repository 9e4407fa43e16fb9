#include <fmt/format.h>
#include <utf8proc.h>

#include <cmath>
#include <utility>

#include "offload/error.h"
#include "offload/text/utf8.h"
#include "runtime/chat/jinja/values/value.h"

// Python's writing of values: str() and repr().
namespace hayloft::runtime::jinja {
namespace {

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_printable(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == U' ';
    default:
      return true;
  }
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    const auto code = static_cast<std::uint32_t>(next.code);
    if (next.code == static_cast<unsigned char>(quote) || next.code == U'\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (next.code == U'\n') {
      out += "\\n";
    } else if (next.code == U'\r') {
      out += "\\r";
    } else if (next.code == U'\t') {
      out += "\\t";
    } else if (is_printable(next.code)) {
      out.append(text, at, next.length);
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
    }
    at += next.length;
  }
  return out + quote;
}

void append_repr(const Value& value, std::string& out) {
  if (value.is(Kind::text)) {
    out += value.is_markup() ? "Markup(" + quoted(value.text()) + ")" : quoted(value.text());
  } else if (value.is(Kind::undefined)) {
    out += "Undefined";
  } else {
    append_text(value, out);
  }
}

void append_sequence(const List& items, char open, char close, std::string& out) {
  out += open;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(items[i], out);
  }
  if (open == '(' && items.size() == 1) out += ',';
  out += close;
}

void append_dict(const Dict& dict, std::string& out) {
  out += '{';
  bool first = true;
  for (const auto& [key, item] : dict.items) {
    if (!std::exchange(first, false)) out += ", ";
    append_repr(key, out);
    out += ": ";
    append_repr(item, out);
  }
  out += '}';
}

}  // namespace

std::string repr(const Value& value) {
  std::string out;
  append_repr(value, out);
  return out;
}

std::string to_text(const Value& value) {
  std::string out;
  append_text(value, out);
  return out;
}

void append_text(const Value& value, std::string& out) {
  switch (value.kind()) {
    case Kind::undefined:
      return;
    case Kind::none:
      out += "None";
      return;
    case Kind::boolean:
      out += value.boolean() ? "True" : "False";
      return;
    case Kind::integer:
      out += std::to_string(value.integer());
      return;
    case Kind::real:
      out += real_text(value.real());
      return;
    case Kind::long_integer:
      out += value.digits();
      return;
    case Kind::text:
      out += value.text();
      return;
    case Kind::list:
      return append_sequence(value.items(), '[', ']', out);
    case Kind::tuple:
      return append_sequence(value.items(), '(', ')', out);
    case Kind::dict:
      return append_dict(value.entries(), out);
    default:
      fail("a {} has no text", value.type_name());
  }
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace hayloft::runtime::jinja
