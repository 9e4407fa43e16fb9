#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime {

namespace {

constexpr std::uint64_t length_bytes = 8;                 // the file opens with its header's length, little-endian
constexpr std::uint64_t most_header_bytes = 100'000'000;  // the format's own limit

struct Dtype {
  std::string_view name;
  int bits;
};
constexpr Dtype dtypes[] = {
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"U16", 16},        {"I16", 16},    {"U32", 32},
    {"I32", 32},    {"U64", 64},    {"I64", 64},        {"F16", 16},        {"BF16", 16},   {"F32", 32},
    {"F64", 64},    {"C64", 64},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

int bits_of(std::string_view dtype) {
  for (const Dtype& known : dtypes) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

struct Entry {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> offsets;  // begin and end, counted from the end of the header
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

// Takes the header event by event and accepts nothing but its schema,
//   {"__metadata__": {string: string, ...}, NAME: {"dtype": string, "shape": [n, ...], "data_offsets": [n, n]}, ...},
// so that no document tree is built: memory stays proportional to the header however its bytes are nested, and a name
// given twice is seen.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  std::map<std::string, Entry, std::less<>> take() { return std::move(entries_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::root;
    } else if (place_ == Place::root) {
      place_ = name_ == "__metadata__" ? Place::metadata : Place::tensor;
    } else {
      misplaced("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::root) {
      name_ = text;
      field_.clear();
      if (name_ == "__metadata__") {
        if (std::exchange(has_metadata_, true)) fail("{}: the header names __metadata__ twice", file_);
      } else {
        const auto [entry, added] = entries_.try_emplace(name_);
        if (!added) fail("{}: the header names tensor {} twice", file_, printable(name_));
        entry_ = &entry->second;
      }
    } else {
      field_ = text;
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) return true;
    if (place_ != Place::tensor || field_ != "dtype" || entry_->has_dtype) misplaced("a string");
    entry_->dtype = text;
    entry_->has_dtype = true;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && field_ == "shape" && !entry_->has_shape) {
      entry_->has_shape = true;
      place_ = Place::shape;
    } else if (place_ == Place::tensor && field_ == "data_offsets" && !entry_->has_offsets) {
      entry_->has_offsets = true;
      place_ = Place::offsets;
    } else {
      misplaced("a list");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape && value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      entry_->shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets && entry_->offsets.size() < 2) {
      entry_->offsets.push_back(value);
    } else {
      misplaced("a number");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor && !(entry_->has_dtype && entry_->has_shape && entry_->offsets.size() == 2)) {
      fail("{}: tensor {} lacks its dtype, shape or two data_offsets", file_, printable(name_));
    }
    place_ = place_ == Place::root ? Place::outside : Place::root;
    return true;
  }

  bool number_integer(number_integer_t) override { misplaced("a negative number"); }
  bool number_float(number_float_t, const std::string&) override { misplaced("a fraction"); }
  bool boolean(bool) override { misplaced("true or false"); }
  bool null() override { misplaced("null"); }
  bool binary(binary_t&) override { misplaced("binary data"); }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception&) override {
    fail("{}: the header is not valid JSON at its byte {}; the file is damaged or no safetensors file", file_, byte);
  }

 private:
  enum class Place { outside, root, metadata, tensor, shape, offsets };

  [[noreturn]] void misplaced(const char* what) const {
    if (place_ == Place::outside) fail("{}: the header is {}, not a JSON object of tensors", file_, what);
    fail("{}: the header has {} where it does not belong, at {}{}{}", file_, what, printable(name_),
         field_.empty() ? "" : ".", printable(field_));
  }

  const std::string& file_;
  Place place_ = Place::outside;
  std::string name_;   // of the root's member being read
  std::string field_;  // of that member's member
  Entry* entry_ = nullptr;
  bool has_metadata_ = false;
  std::map<std::string, Entry, std::less<>> entries_;
};

// Bytes that `shape` of `dtype` fills; throws when that does not fit 63 bits or is no whole number of bytes.
std::uint64_t bytes_needed(const Entry& entry, const std::string& file, const std::string& name) {
  const int bits = bits_of(entry.dtype);
  if (bits == 0) fail("{}: tensor {} has the unknown dtype {}", file, name, printable(entry.dtype));
  std::uint64_t elements = 1;
  for (const std::int64_t n : entry.shape) {
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(n), &elements) ||
        elements > std::uint64_t{std::numeric_limits<std::int64_t>::max()} / 64) {
      fail("{}: the shape of tensor {} is larger than any file", file, name);
    }
  }
  const std::uint64_t total = elements * static_cast<std::uint64_t>(bits);
  if (total % 8 != 0) fail("{}: the shape of tensor {} does not fill whole bytes", file, name);
  return total / 8;
}

void refuse_overlap(const std::map<std::string, Entry, std::less<>>& entries, const std::string& file) {
  struct Extent {
    std::uint64_t begin;
    std::uint64_t end;
    const std::string* name;
  };
  std::vector<Extent> extents;
  for (const auto& [name, entry] : entries) {
    if (entry.offsets[0] < entry.offsets[1]) extents.push_back({entry.offsets[0], entry.offsets[1], &name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      fail("{}: the data of tensors {} and {} overlap", file, printable(*extents[i - 1].name),
           printable(*extents[i].name));
    }
  }
}

}  // namespace

std::int64_t TensorView::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

std::map<std::string, TensorView, std::less<>> parse_safetensors(std::span<const std::byte> file,
                                                                 const std::string& name) {
  if (file.size() < length_bytes) fail("{}: {} bytes is too short for a safetensors file", name, file.size());
  std::uint64_t header_bytes = 0;
  for (std::uint64_t i = 0; i < length_bytes; ++i) header_bytes |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (header_bytes > most_header_bytes) {
    fail("{}: no safetensors file: its header would be {} bytes, and {} is the most the format allows", name,
         header_bytes, most_header_bytes);
  }
  if (header_bytes > file.size() - length_bytes) {
    fail("{}: truncated: its header is {} bytes, the file only {}", name, header_bytes, file.size());
  }

  const char* header = reinterpret_cast<const char*>(file.data()) + length_bytes;
  HeaderReader reader(name);
  nlohmann::json::sax_parse(header, header + header_bytes, &reader);
  const std::map<std::string, Entry, std::less<>> entries = reader.take();

  const std::span<const std::byte> data = file.subspan(length_bytes + header_bytes);
  std::map<std::string, TensorView, std::less<>> tensors;
  for (const auto& [key, entry] : entries) {
    const std::string tensor = printable(key);
    const std::uint64_t begin = entry.offsets[0];
    const std::uint64_t end = entry.offsets[1];
    const std::uint64_t needed = bytes_needed(entry, name, tensor);
    if (begin > end || end - begin != needed) {
      fail("{}: tensor {} needs {} bytes by its shape and dtype, but its data_offsets are [{}, {}]", name, tensor,
           needed, begin, end);
    }
    if (end > data.size()) {
      fail("{}: truncated: tensor {} ends at byte {}, the file at {}", name, tensor, length_bytes + header_bytes + end,
           file.size());
    }
    tensors.emplace(key, TensorView{entry.dtype, entry.shape, data.subspan(begin, needed)});
  }
  refuse_overlap(entries, name);
  return tensors;
}

}  // namespace hayloft::runtime
