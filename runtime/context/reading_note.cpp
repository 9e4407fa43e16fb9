#include "runtime/context/reading_note.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <set>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

template <class T>
bool read_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_kind(std::string_view text, PrefillOptions::Kind& kind) {
  using Kind = PrefillOptions::Kind;
  for (const Kind candidate : {Kind::exact, Kind::window, Kind::topk, Kind::sparse}) {
    if (text == name(candidate)) {
      kind = candidate;
      return true;
    }
  }
  return false;
}

// Returns labels as one word of a note has them.
std::string write_methods(const std::set<std::string>& labels) {
  std::string word;
  for (const std::string& label : labels) {
    if (!word.empty()) word += ';';
    for (const char character : label) {
      const bool plain =
          character > ' ' && character <= '~' && character != ',' && character != ';' && character != '%';
      if (plain || character == ' ') {
        word += plain ? character : ',';
      } else {
        word += fmt::format("%{:02X}", static_cast<unsigned char>(character));
      }
    }
  }
  return word;
}

// Reads a label of such a word; nothing where it is none.
std::optional<std::string> read_method(std::string_view word) {
  std::string label;
  for (; !word.empty(); word.remove_prefix(1)) {
    const char character = word.front();
    int code = character == ',' ? ' ' : character;
    if (character == '%') {
      const std::string_view digits = word.substr(1, 2);
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
      if (error != std::errc() || digits.size() < 2 || end != digits.data() + 2 || digits[0] == '-')
        return std::nullopt;
      word.remove_prefix(2);
    } else if (character <= ' ' || character > '~') {
      return std::nullopt;
    }
    label += static_cast<char>(code);
  }
  return label.empty() ? std::nullopt : std::optional(std::move(label));
}

bool read_methods(std::string_view word, std::set<std::string>& labels) {
  for (;;) {
    const std::size_t end = std::min(word.find(';'), word.size());
    std::optional<std::string> label = read_method(word.substr(0, end));
    if (!label) return false;
    labels.insert(std::move(*label));
    if (end == word.size()) return true;
    word.remove_prefix(end + 1);
  }
}

bool read_word(std::string_view key, std::string_view value, ReadingNote& note) {
  PrefillOptions& prefill = note.prefill;
  if (key == "chunk_tokens") return read_whole(value, note.chunk_tokens) && note.chunk_tokens >= 1;
  if (key == "checkpoints") return read_whole(value, note.checkpoints) && note.checkpoints >= 1;
  if (key == "products") {
    note.products = gpu::Products::int8;
    return value == gpu::name(note.products);
  }
  if (key == "decoded_from") return read_whole(value, note.approximate.first) && note.approximate.first >= 0;
  if (key == "decoded") return read_methods(value, note.approximate.methods);
  if (key == "prefill") return read_kind(value, prefill.kind);
  if (key == "window") return read_whole(value, prefill.window) && prefill.window >= 1;
  gpu::SparseCausal& sparse = prefill.sparse;
  if (key == "mass") return read_whole(value, sparse.mass) && sparse.mass > 0 && sparse.mass <= 1;
  if (key == "density") return read_whole(value, sparse.density) && sparse.density >= 0 && sparse.density <= 1;
  if (key == "fidelity") return read_whole(value, sparse.fidelity) && sparse.fidelity > 0 && sparse.fidelity <= 1;
  if (key == "sinks") return read_whole(value, prefill.sinks) && prefill.sinks >= 0;
  if (key == "k") return read_whole(value, prefill.k.count) && prefill.k.count >= 1;
  if (key == "k_share") {
    prefill.k.count = 0;
    return read_whole(value, prefill.k.share) && prefill.k.share > 0 && prefill.k.share <= 1;
  }
  return false;
}

}  // namespace

std::string write_note(const ReadingNote& note) {
  const PrefillOptions& prefill = note.prefill;
  std::string text = fmt::format("chunk_tokens={}", note.chunk_tokens);
  if (note.checkpoints > 0) text += fmt::format(" checkpoints={}", note.checkpoints);
  if (note.products != gpu::Products::exact) text += fmt::format(" products={}", gpu::name(note.products));
  if (!note.approximate.none()) {
    text += fmt::format(" decoded_from={} decoded={}", note.approximate.first, write_methods(note.approximate.methods));
  }
  if (prefill.kind == PrefillOptions::Kind::exact) return text;
  if (prefill.kind == PrefillOptions::Kind::sparse) {
    text += fmt::format(" prefill=sparse mass={} density={}", prefill.sparse.mass, prefill.sparse.density);
    return prefill.sparse.fidelity > 0 ? text + fmt::format(" fidelity={}", prefill.sparse.fidelity) : text;
  }
  text += fmt::format(" prefill={} window={}", name(prefill.kind), prefill.window);
  if (prefill.kind == PrefillOptions::Kind::window) return text + fmt::format(" sinks={}", prefill.sinks);
  if (prefill.k.count > 0) return text + fmt::format(" k={}", prefill.k.count);
  return text + fmt::format(" k_share={}", prefill.k.share);  // as many digits as give the same share again
}

bool reads_exactly(const ReadingNote& note) {
  return note.prefill.kind == PrefillOptions::Kind::exact && note.products == gpu::Products::exact &&
         note.approximate.none();
}

ReadingNote read_note(std::string_view text, std::string_view file) {
  ReadingNote note;
  std::set<std::string_view> seen;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t space = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, space);
    rest.remove_prefix(std::min(space + 1, rest.size()));
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
    if (!seen.insert(key).second || !read_word(key, value, note)) {
      fail("{}: how it was read is not understood, at '{}'; make it anew", file, word);
    }
  }
  const auto needs = [&](std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      if (!seen.contains(key)) fail("{}: does not say how it was read, {} is missing; make it anew", file, key);
    }
  };
  needs({"chunk_tokens"});
  if (seen.contains("k") && seen.contains("k_share")) fail("{}: says both k and k_share; make it anew", file);
  if (seen.contains("decoded_from") || seen.contains("decoded")) needs({"decoded_from", "decoded"});
  if (note.prefill.kind == PrefillOptions::Kind::window) needs({"window", "sinks"});
  if (note.prefill.kind == PrefillOptions::Kind::sparse && !seen.contains("density") && !seen.contains("fidelity")) {
    needs({"mass"});
  }
  if (note.prefill.kind == PrefillOptions::Kind::topk) needs({"window", seen.contains("k_share") ? "k_share" : "k"});
  return note;
}

}  // namespace hayloft::runtime
