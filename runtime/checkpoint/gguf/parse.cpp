#include "runtime/checkpoint/gguf/parse.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian and is used in place");

constexpr char magic[] = {'G', 'G', 'U', 'F'};
constexpr std::uint32_t most_dimensions = 4;        // of ggml
constexpr std::uint64_t most_name_bytes = 1 << 16;  // the format's limit for keys
constexpr std::int64_t least_alignment = 8;         // of the format
constexpr std::int64_t most_alignment = 1 << 20;
constexpr std::uint64_t most_elements = std::uint64_t{1} << 56;  // their bytes fit 63 bits in every type

// Reads from the front of the image; what it says in errors is where in the file that was.
class Cursor {
 public:
  Cursor(std::span<const std::byte> image, const std::string& file) : image_(image), file_(file) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return image_.size() - at_; }

  std::span<const std::byte> bytes(std::uint64_t count, const char* what) {
    if (count > left()) {
      fail("{}: truncated or damaged: {} at byte {} needs {} bytes, and {} are left", file_, what, at_, count, left());
    }
    const auto taken = image_.subspan(at_, count);
    at_ += count;
    return taken;
  }

  template <class T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, bytes(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string_view text(const char* what) {
    const auto letters = bytes(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(letters.data()), letters.size()};
  }

  std::string_view name(const char* what) {
    const std::string_view text = this->text(what);
    if (text.size() > most_name_bytes) fail("{}: damaged: {} of {} bytes at byte {}", file_, what, text.size(), at_);
    return text;
  }

 private:
  std::span<const std::byte> image_;
  const std::string& file_;
  std::uint64_t at_ = 0;
};

ValueType value_type(Cursor& in, const std::string& file, std::string_view key) {
  const auto type = in.number<std::uint32_t>("the type of a metadata value");
  if (type > static_cast<std::uint32_t>(ValueType::f64)) {
    fail("{}: damaged: the metadata value {} has the unknown type {}", file, printable(key), type);
  }
  return static_cast<ValueType>(type);
}

Array read_array(Cursor& in, const std::string& file, std::string_view key) {
  constexpr const char* what = "a list of metadata";
  Array array{value_type(in, file, key), in.number<std::uint64_t>(what), {}};
  if (array.type == ValueType::array) fail("{}: {} is a list of lists, which no GGUF has", file, printable(key));
  if (array.type != ValueType::text) {
    const auto size = static_cast<std::uint64_t>(bytes_of(array.type));
    if (array.count > in.left() / size) {
      fail("{}: truncated or damaged: {} lists {} values, and {} bytes are left", file, printable(key), array.count,
           in.left());
    }
    array.bytes = in.bytes(array.count * size, what);
    return array;
  }
  Cursor texts = in;
  for (std::uint64_t i = 0; i < array.count; ++i) texts.text("a text in a list of metadata");
  array.bytes = in.bytes(texts.at() - in.at(), what);
  return array;
}

Value read_value(Cursor& in, const std::string& file, std::string_view key) {
  constexpr const char* what = "a metadata value";
  switch (value_type(in, file, key)) {
    case ValueType::u8:
      return std::uint64_t{in.number<std::uint8_t>(what)};
    case ValueType::i8:
      return std::int64_t{in.number<std::int8_t>(what)};
    case ValueType::u16:
      return std::uint64_t{in.number<std::uint16_t>(what)};
    case ValueType::i16:
      return std::int64_t{in.number<std::int16_t>(what)};
    case ValueType::u32:
      return std::uint64_t{in.number<std::uint32_t>(what)};
    case ValueType::i32:
      return std::int64_t{in.number<std::int32_t>(what)};
    case ValueType::f32:
      return double{in.number<float>(what)};
    case ValueType::boolean:
      return in.number<std::uint8_t>(what) != 0;
    case ValueType::text:
      return in.text(what);
    case ValueType::u64:
      return in.number<std::uint64_t>(what);
    case ValueType::i64:
      return in.number<std::int64_t>(what);
    case ValueType::f64:
      return in.number<double>(what);
    case ValueType::array:
      break;
  }
  return read_array(in, file, key);
}

struct Place {  // of a tensor's bytes, counted from where the data begin
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  const std::string* name = nullptr;
};

Place read_tensor(Cursor& in, const std::string& file, Tensors& tensors) {
  constexpr const char* what = "a tensor's description";
  const auto [entry, added] = tensors.try_emplace(std::string(in.name("a tensor's name")));
  const std::string name = printable(entry->first);
  if (!added) fail("{}: describes tensor {} twice", file, name);

  Tensor& tensor = entry->second;
  const auto dimensions = in.number<std::uint32_t>(what);
  if (dimensions == 0 || dimensions > most_dimensions) {
    fail("{}: damaged: tensor {} has {} dimensions; it must have 1 to {}", file, name, dimensions, most_dimensions);
  }
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto length = in.number<std::uint64_t>(what);
    if (length == 0 || __builtin_mul_overflow(elements, length, &elements) || elements > most_elements) {
      fail("{}: damaged: the shape of tensor {} holds nothing or more than any file", file, name);
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(length));
  }

  const auto type = in.number<std::uint32_t>(what);
  const TypeTraits* traits = find_type(type);
  if (!traits) {
    fail("{}: tensor {} has type {}, which is not supported; supported are {}", file, name, type_name(type),
         supported_type_names());
  }
  tensor.type = traits->type;
  if (tensor.shape.back() % traits->block_elements != 0) {
    fail("{}: damaged: the rows of tensor {} have {} elements, no multiple of the {} in a block of {}", file, name,
         tensor.shape.back(), traits->block_elements, traits->name);
  }
  const std::uint64_t blocks = elements / static_cast<std::uint64_t>(traits->block_elements);
  const auto offset = in.number<std::uint64_t>(what);
  return {offset, blocks * static_cast<std::uint64_t>(traits->block_bytes), &entry->first};
}

void place_tensors(std::vector<Place> places, std::span<const std::byte> image, std::uint64_t data_begin,
                   std::uint64_t alignment, const std::string& file, Tensors& tensors) {
  const std::uint64_t room = image.size() - std::min<std::uint64_t>(data_begin, image.size());
  for (const Place& place : places) {
    if (place.offset % alignment != 0) {
      fail("{}: damaged: tensor {} begins at {}, no multiple of general.alignment {}", file, printable(*place.name),
           place.offset, alignment);
    }
    if (place.offset > room || place.bytes > room - place.offset) {
      fail("{}: truncated: tensor {} needs {} bytes from byte {} on, and the file ends at {}", file,
           printable(*place.name), place.bytes, data_begin + place.offset, image.size());
    }
    tensors.find(*place.name)->second.data = image.subspan(data_begin + place.offset, place.bytes);
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.offset < b.offset; });
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].offset - places[i - 1].offset < places[i - 1].bytes) {
      fail("{}: damaged: the data of tensors {} and {} overlap", file, printable(*places[i - 1].name),
           printable(*places[i].name));
    }
  }
}

void check_version(std::uint32_t version, const std::string& file) {
  if (version == 2 || version == 3) return;
  if (version > 0 && version % (1u << 16) == 0) fail("{}: a big-endian GGUF, which is not supported", file);
  fail("{}: GGUF version {} is not supported; versions 2 and 3 are", file, version);
}

}  // namespace

std::int64_t Tensor::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

Parsed parse(std::span<const std::byte> image, const std::string& file) {
  if (image.size() < sizeof magic || std::memcmp(image.data(), magic, sizeof magic) != 0) {
    fail(
        "{}: not a GGUF file (it does not begin with \"GGUF\"); -m takes a GGUF file or a folder with config.json, "
        "tokenizer.json and safetensors",
        file);
  }
  Cursor in(image, file);
  in.bytes(sizeof magic, "the magic");
  check_version(in.number<std::uint32_t>("the version"), file);
  const auto tensor_count = in.number<std::uint64_t>("the number of tensors");
  const auto pair_count = in.number<std::uint64_t>("the number of metadata values");

  Parsed parsed;
  std::map<std::string, Value, std::less<>> values;
  for (std::uint64_t i = 0; i < pair_count; ++i) {
    const std::string_view key = in.name("a metadata key");
    const auto [value, added] = values.try_emplace(std::string(key), read_value(in, file, key));
    if (!added) fail("{}: damaged: the metadata give {} twice", file, printable(value->first));
  }
  parsed.metadata = Metadata(file, std::move(values));

  std::vector<Place> places;
  for (std::uint64_t i = 0; i < tensor_count; ++i) places.push_back(read_tensor(in, file, parsed.tensors));

  const auto alignment =
      static_cast<std::uint64_t>(parsed.metadata.integer_or("general.alignment", 32, least_alignment, most_alignment));
  if (!std::has_single_bit(alignment)) parsed.metadata.refuse("general.alignment", "a power of two");
  parsed.data_begin = (in.at() + alignment - 1) / alignment * alignment;
  place_tensors(std::move(places), image, parsed.data_begin, alignment, file, parsed.tensors);
  return parsed;
}

}  // namespace hayloft::runtime::gguf
