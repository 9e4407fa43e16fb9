#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/tokenizer/bpe/bytes.h"
#include "runtime/tokenizer/unicode.h"

// From the vocabularies that models were published with to the tokenizer.json that hayloft reads, as Hugging Face's
// converters do it. For tests: the files are trusted.
namespace hayloft::test {

// One entry of a SentencePiece vocabulary; its id is its place.
struct Piece {
  std::string text;    // with U+2581 for the space
  float score = 0;     // what has more joins first
  bool normal = true;  // not a control, unknown or byte entry: can be the result of a merge
};

// Reads values off the front of a binary file.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }

  std::string_view take(std::size_t count) {
    if (count > left_.size()) throw std::runtime_error("file ends early");
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  template <class Value>
  Value value() {
    Value read;
    std::memcpy(&read, take(sizeof read).data(), sizeof read);
    return read;
  }

  std::uint64_t varint() {
    std::uint64_t read = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = value<std::uint8_t>();
      read |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    return read;
  }

  // A field of a protocol buffer: its number, and the bytes of its value (of a varint the value itself, in `number`).
  struct Field {
    int id;
    std::uint64_t number;
    std::string_view bytes;
  };
  Field field() {
    const std::uint64_t tag = varint();
    const int id = static_cast<int>(tag >> 3);
    switch (tag & 7) {
      case 0:
        return {id, varint(), {}};
      case 1:
        return {id, 0, take(8)};
      case 2:
        return {id, 0, take(varint())};
      case 5:
        return {id, 0, take(4)};
      default:
        throw std::runtime_error("unknown wire type");
    }
  }

 private:
  std::string_view left_;
};

// The pieces of a SentencePiece model (sentencepiece_model.proto: field 1, with text 1, score 2 and type 3).
inline std::vector<Piece> sentencepiece_pieces(std::string_view model) {
  std::vector<Piece> pieces;
  for (Bytes fields(model); !fields.empty();) {
    const auto message = fields.field();
    if (message.id != 1) continue;
    Piece& piece = pieces.emplace_back();
    for (Bytes members(message.bytes); !members.empty();) {
      const auto member = members.field();
      if (member.id == 1) piece.text = member.bytes;
      if (member.id == 2) piece.score = Bytes(member.bytes).value<float>();
      if (member.id == 3) piece.normal = member.number == 1;
    }
  }
  return pieces;
}

// The vocabulary of llama2.c's tokenizer.bin: the largest length, then score, length and text of each entry. The first
// 259 are <unk>, BOS, EOS and the bytes.
inline std::vector<Piece> llama2c_pieces(std::string_view tokenizer_bin) {
  std::vector<Piece> pieces;
  Bytes file(tokenizer_bin);
  file.value<std::int32_t>();
  while (!file.empty()) {
    Piece& piece = pieces.emplace_back();
    piece.score = file.value<float>();
    for (const char c : file.take(static_cast<std::size_t>(file.value<std::int32_t>()))) {
      piece.text += c == ' ' ? "\u2581" : std::string(1, c);
    }
    piece.normal = pieces.size() > 259;
  }
  pieces[1].text = "<s>";
  pieces[2].text = "</s>";
  return pieces;
}

// The form of Llama 2: every cut of an entry into two entries is a merge, in the order of the entries' scores.
inline nlohmann::json sentencepiece_tokenizer(const std::vector<Piece>& pieces) {
  std::unordered_map<std::string_view, std::size_t> ids;
  nlohmann::json vocabulary = nlohmann::json::object();
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    ids.emplace(pieces[id].text, id);
    vocabulary[pieces[id].text] = id;
  }
  struct Merge {
    std::string_view left, right;
    float score;
    std::size_t left_id, right_id;
  };
  std::vector<Merge> merges;
  for (const Piece& piece : pieces) {
    if (!piece.normal) continue;
    const std::size_t first = merges.size();
    const std::string_view text = piece.text;
    for (std::size_t cut = utf8_at(text, 0).length; cut < text.size(); cut += utf8_at(text, cut).length) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({left->first, right->first, piece.score, left->second, right->second});
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(), [](const auto& a, const auto& b) {
      return std::tie(a.left_id, a.right_id) < std::tie(b.left_id, b.right_id);
    });
  }
  std::stable_sort(merges.begin(), merges.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  nlohmann::json list = nlohmann::json::array();
  for (const Merge& merge : merges) list.push_back({merge.left, merge.right});

  const auto special = [](int id, const char* text) {
    return nlohmann::json{{"id", id}, {"content", text}, {"special", true}, {"normalized", false}};
  };
  const auto replace = [](const char* from, const char* to) {
    return nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const nlohmann::json prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}};
  const nlohmann::json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const nlohmann::json bytes = {{"type", "ByteFallback"}}, fuse = {{"type", "Fuse"}};
  const nlohmann::json bos = {{"SpecialToken", {{"id", "<s>"}}}}, text = {{"Sequence", {{"id", "A"}}}};
  return {{"added_tokens", {special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")}},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, replace(" ", "\u2581")}}}},
          {"post_processor",
           {{"type", "TemplateProcessing"}, {"single", {bos, text}}, {"special_tokens", {{"<s>", {{"ids", {1}}}}}}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", {replace("\u2581", " "), bytes, fuse, strip}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", std::move(vocabulary)},
            {"merges", std::move(list)}}}};
}

// The lines "a b" of a merges.txt or vocab.bpe.
inline std::vector<std::string> merge_lines(std::string_view file) {
  std::vector<std::string> lines;
  while (!file.empty()) {
    const std::string_view line = file.substr(0, file.find('\n'));
    file.remove_prefix(std::min(file.size(), line.size() + 1));
    if (!line.empty() && line.substr(0, 9) != "#version:") lines.emplace_back(line);
  }
  return lines;
}

// GPT-2's vocabulary: the letters of the bytes that are printable, of the others, then what each merge gives.
inline nlohmann::json vocabulary_of_merges(const std::vector<std::string>& merges) {
  nlohmann::json vocabulary = nlohmann::json::object();
  const auto is_letter_itself = [](int byte) {
    return utf8_at(runtime::byte_letter(static_cast<std::uint8_t>(byte)), 0).code < 0x100;
  };
  for (const bool itself : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (is_letter_itself(byte) != itself) continue;
      vocabulary[std::string(runtime::byte_letter(static_cast<std::uint8_t>(byte)))] = vocabulary.size();
    }
  }
  for (std::string merge : merges) {
    merge.erase(merge.find(' '), 1);
    vocabulary[merge] = vocabulary.size();
  }
  return vocabulary;
}

// Pieces of `pattern` in byte letters; an empty pattern stands for GPT-2's.
inline nlohmann::json byte_level_tokenizer(nlohmann::json vocabulary, const std::vector<std::string>& merges,
                                           const std::string& pattern) {
  nlohmann::json letters = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", pattern.empty()}};
  if (!pattern.empty()) {
    const nlohmann::json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    letters = {{"type", "Sequence"}, {"pretokenizers", {split, letters}}};
  }
  return {{"pre_tokenizer", letters},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", merges}}}};
}

}  // namespace hayloft::test
