#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/gguf/metadata.h"

namespace hayloft::runtime::gguf {

// A file's metadata under its architecture's prefix: "block_count" is the key "llama.block_count". Keeps account of
// what has been asked for, so that what nobody reads can be told. A view.
class Keys {
 public:
  explicit Keys(const Metadata& metadata)
      : metadata_(metadata), architecture_(metadata.text("general.architecture")), prefix_(architecture_ + ".") {}

  const std::string& architecture() const { return architecture_; }
  bool is(std::string_view architecture) const { return architecture == architecture_; }
  const std::string& file() const { return metadata_.file(); }

  const Value* find(std::string_view name) const { return metadata_.find(key(name)); }  // null when absent
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  bool is_list(std::string_view name) const;

  // As those of Metadata.
  std::int64_t integer(std::string_view name, std::int64_t least, std::int64_t most) const;
  std::int64_t integer_or(std::string_view name, std::int64_t absent, std::int64_t least, std::int64_t most) const;
  double positive(std::string_view name) const { return metadata_.positive(key(name)); }
  double positive_or(std::string_view name, double absent) const { return metadata_.positive_or(key(name), absent); }
  bool boolean_or(std::string_view name, bool absent) const { return metadata_.boolean_or(key(name), absent); }
  std::string_view text_or(std::string_view name, std::string_view absent) const {
    return metadata_.text_or(key(name), absent);
  }
  std::vector<std::int64_t> integers(std::string_view name) const { return metadata_.integers(key(name)); }

  bool is_zero(std::string_view name) const;  // there, and a number that is 0
  // Returns `absent` where 0 says the same as nothing.
  double nonzero_or(std::string_view name, double absent) const;

  // A number, or a list of one for each block, of which those of the first `layers` are the same: layers of different
  // sizes are refused by their number.
  std::int64_t same_in_layers(std::string_view name, int layers, std::int64_t least, std::int64_t most) const;

  // Throws the Error for a value that is not as `expected`.
  [[noreturn]] void refuse(std::string_view name, const std::string& expected) const {
    metadata_.refuse(key(name), expected);
  }

  std::vector<std::string> unread() const;  // names of the file's keys under the prefix, without it

 private:
  std::string key(std::string_view name) const;

  const Metadata& metadata_;
  std::string architecture_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace hayloft::runtime::gguf
