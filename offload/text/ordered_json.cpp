#include "offload/text/ordered_json.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "offload/error.h"

namespace hayloft {
namespace {

using nlohmann::ordered_json;

// Builds a value from the events of nlohmann's parser.
class OrderedBuilder : public nlohmann::json_sax<ordered_json> {
 public:
  OrderedBuilder(std::size_t bytes, LongIntegers long_integers, int most_depth)
      : bytes_(bytes), long_integers_(long_integers), most_depth_(most_depth) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_not_of("-0123456789") != std::string::npos) return add(value);
    if (long_integers_ == LongIntegers::refused) fail("an integer in the JSON has more than 64 bits");
    return add(ordered_json::binary({text.begin(), text.end()}));
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(ordered_json::object()); }
  bool start_array(std::size_t) override { return open(ordered_json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    open_.back().key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int out_of_range = 406;  // a number that no double can hold
    if (error.id == out_of_range) fail("not valid JSON: a number in it is out of range");
    fail("not valid JSON at byte {} of {}", std::min(byte, bytes_), bytes_);
  }

  ordered_json take() { return std::move(root_); }

 private:
  // A list or an object whose end has not come.
  struct Open {
    ordered_json value;
    std::string key = {};
    std::unordered_map<std::string, std::size_t> places = {};  // of its members, once there are many
  };

  bool open(ordered_json value) {
    if (static_cast<int>(open_.size()) == most_depth_) {
      fail("lists and objects lie in one another more than {} deep", most_depth_);
    }
    open_.push_back({std::move(value)});
    return true;
  }

  bool close() {
    ordered_json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(ordered_json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      set(open_.back(), std::move(value));
    }
    return true;
  }

  static void set(Open& into, ordered_json value) {
    auto& members = into.value.get_ref<ordered_json::object_t&>();
    constexpr std::size_t few = 16;
    std::size_t place = members.size();
    if (members.size() < few) {
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (members.begin()[static_cast<std::ptrdiff_t>(i)].first == into.key) place = i;
      }
    } else {
      if (into.places.empty()) {
        for (const auto& member : members) into.places.emplace(member.first, into.places.size());
      }
      place = into.places.emplace(into.key, members.size()).first->second;
    }
    if (place < members.size()) {
      members.begin()[static_cast<std::ptrdiff_t>(place)].second = std::move(value);
    } else {
      members.Container::emplace_back(into.key, std::move(value));
    }
  }

  const std::size_t bytes_;
  const LongIntegers long_integers_;
  const int most_depth_;
  ordered_json root_;
  std::vector<Open> open_;
};

bool holds_long_integer(const ordered_json& json) {
  if (!json.is_structured()) return json.is_binary();
  return std::any_of(json.begin(), json.end(), holds_long_integer);
}

std::string dumped(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void write(const ordered_json& json, std::string& text) {
  if (json.is_binary()) {
    text.append(json.get_binary().begin(), json.get_binary().end());
  } else if (!json.is_structured() || !holds_long_integer(json)) {
    text += dumped(json);
  } else {
    const bool object = json.is_object();
    char before = object ? '{' : '[';
    for (const auto& [name, value] : json.items()) {
      text += std::exchange(before, ',');
      if (object) text += dumped(name) + ":";
      write(value, text);
    }
    text += object ? '}' : ']';
  }
}

// Returns a text of a URI as it was before bytes of it became "%20"; what is none of these stays.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool coded =
        text[i] == '%' && text.size() - i > 2 && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    decoded += coded ? static_cast<char>(byte) : text[i];
    if (coded) i += 2;
  }
  return decoded;
}

}  // namespace

const ordered_json* part_of_json(const ordered_json& whole, std::string_view fragment) {
  if (!fragment.starts_with('#')) return nullptr;
  try {
    return &whole.at(ordered_json::json_pointer(percent_decoded(fragment.substr(1))));
  } catch (const ordered_json::exception&) {
    return nullptr;
  }
}

std::string text_of_json(const ordered_json& json) {
  std::string text;
  write(json, text);
  return text;
}

ordered_json parse_ordered_json(std::string_view text, LongIntegers long_integers, int most_depth) {
  const std::size_t zero = text.find('\0');  // at which nlohmann's parser would stop, whatever stands behind
  if (zero != std::string_view::npos) fail("not valid JSON at byte {} of {}", zero + 1, text.size());
  OrderedBuilder builder(text.size(), long_integers, most_depth);
  ordered_json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace hayloft
