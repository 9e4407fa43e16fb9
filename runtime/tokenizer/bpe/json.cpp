#include <algorithm>

#include "runtime/tokenizer/bpe/bpe.h"
#include "runtime/tokenizer/bpe/bytes.h"
#include "runtime/tokenizer/json.h"
#include "runtime/tokenizer/unicode.h"

// Reads a Bpe from a tokenizer.json.
namespace hayloft::runtime {
namespace {

constexpr char32_t kBasicPlane = 0x10000;

void check_type(const Field& model) {
  const std::string type = model.text("type", "BPE");  // early files leave it out
  if (type != "BPE") {
    fail("{}: a tokenizer of type {} is not supported, only BPE is", model.where(), printable(type));
  }
  if (!model.find("merges") && !model.find("scores")) {
    fail("{}: the tokenizer has no merges (field 'merges' is missing); convert the model's tokenizer again",
         model.where());
  }
  const auto dropout = model.find("dropout");
  if (dropout && dropout->value() != 0) {
    fail("{}: dropout of merges is for training; set it to null", dropout->where());
  }
}

}  // namespace

Bpe::Bpe(const Field& model, bool byte_level) : byte_level_(byte_level) {
  check_type(model);
  ignore_merges_ = model.flag("ignore_merges", false);
  fuse_unknown_ = model.flag("fuse_unk", false);
  byte_fallback_ = model.flag("byte_fallback", false);
  prefix_ = model.text("continuing_subword_prefix", "");
  suffix_ = model.text("end_of_word_suffix", "");
  segmentable_ = prefix_.empty() && suffix_.empty();

  read_vocabulary(model.at("vocab"));
  if (const auto unknown = model.find("unk_token")) unknown_ = find(unknown->text());
  for (int byte = 0; byte < 256; ++byte) {
    letters_[byte] = find(byte_letter(static_cast<std::uint8_t>(byte)));
    bytes_[byte] = find(fmt::format("<0x{:02X}>", byte));
  }
  if (!prefix_.empty() || !suffix_.empty()) letters_.fill(-1);  // a letter's symbol depends on its place in the word
  if (const auto scores = model.find("scores")) {
    read_scores(*scores);
  } else {
    read_merges(model.at("merges"));
  }
}

void Bpe::read_vocabulary(const Field& vocab) {
  characters_.assign(kBasicPlane, -1);
  if (vocab.value().is_array()) return read_texts(vocab);
  const auto& entries = vocab.object();
  TokenId largest = -1;
  for (const auto& [text, id] : entries.items()) {
    largest = std::max(largest, Field(id, vocab.file(), vocab.path() + "['" + printable(text) + "']").token_id());
  }
  texts_.resize(static_cast<std::size_t>(largest + 1));
  ids_.reserve(entries.size());
  for (const auto& [text, value] : entries.items()) {
    if (text.empty()) continue;
    const auto id = value.get<TokenId>();
    std::string& slot = texts_[static_cast<std::size_t>(id)];
    if (!slot.empty()) {
      fail("{}: '{}' and '{}' have the same id {}", vocab.where(), printable(slot), printable(text), id);
    }
    slot = text;
    index(id);
  }
}

// A list of the texts by id, as a GGUF has them; of two that are the same the first counts.
void Bpe::read_texts(const Field& vocab) {
  for (const auto& text : vocab.value()) texts_.push_back(Field(text, vocab.file(), vocab.path()).text());
  ids_.reserve(texts_.size());
  for (TokenId id = 0; id < size(); ++id) {
    if (!texts_[static_cast<std::size_t>(id)].empty()) index(id);
  }
}

void Bpe::index(TokenId id) {
  const std::string& text = texts_[static_cast<std::size_t>(id)];
  if (!ids_.add(id)) return;
  const Utf8Char first = utf8_at(text, 0);
  if (first.length == text.size() && first.code < kBasicPlane) characters_[first.code] = id;
}

void Bpe::read_merges(const Field& merges) {
  if (!merges.value().is_array()) fail("{}: expected an array, found {}", merges.where(), merges.value().type_name());
  std::size_t index = 0;
  for (const auto& merge : merges.value()) {
    if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (text.substr(0, 8) == "#version") continue;  // merges.txt files begin with such a line
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        fail("{}[{}]: '{}' is not two tokens with a space between", merges.where(), index, printable(text));
      }
      add_merge(text.substr(0, space), text.substr(space + 1), index, merges);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), index, merges);
    } else {
      fail("{}[{}]: a merge is a string \"a b\" or an array [\"a\", \"b\"]", merges.where(), index);
    }
    ++index;
  }
  merge_count_ = index;
}

// SentencePiece's BPE: two tokens join when the vocabulary has both together, those of the highest score first. So all
// ways of cutting one token in two are merges of one rank.
void Bpe::read_scores(const Field& scores) {
  std::vector<std::pair<double, TokenId>> order;  // minus the score, so that the highest is the smallest
  for (const auto& score : scores.value()) {
    if (!score.is_number()) fail("{}[{}]: expected a number", scores.where(), order.size());
    order.emplace_back(-score.get<double>(), static_cast<TokenId>(order.size()));
  }
  if (order.size() != texts_.size()) {
    fail("{}: expected a number for each of the {} tokens, found {}", scores.where(), texts_.size(), order.size());
  }
  std::sort(order.begin(), order.end());
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && order[i].first != order[i - 1].first) ++rank;
    const TokenId joined = order[i].second;
    const std::string_view text = texts_[static_cast<std::size_t>(joined)];
    if (find(text) != joined || std::find(bytes_.begin(), bytes_.end(), joined) != bytes_.end()) continue;
    for (std::size_t cut = text.empty() ? 0 : utf8_at(text, 0).length; cut < text.size();
         cut += utf8_at(text, cut).length) {
      const TokenId left = find(text.substr(0, cut));
      const TokenId right = left < 0 ? -1 : find(text.substr(cut));
      if (right < 0) continue;
      merges_.set(left, right, {rank, joined});
      note_joint(text.substr(0, cut), left, text.substr(cut), right);
      ++merge_count_;
    }
  }
}

TokenId Bpe::find_or_fail(std::string_view text, std::size_t merge, const Field& merges) const {
  const TokenId id = find(text);
  if (id < 0) fail("{}[{}]: '{}' is not in the vocabulary", merges.where(), merge, printable(text));
  return id;
}

void Bpe::add_merge(std::string_view left, std::string_view right, std::size_t index, const Field& merges) {
  const TokenId left_id = find_or_fail(left, index, merges);
  const TokenId right_id = find_or_fail(right, index, merges);
  if (right.substr(0, prefix_.size()) != prefix_) {
    fail("{}[{}]: '{}' lacks the prefix '{}' of what continues a word", merges.where(), index, printable(right),
         printable(prefix_));
  }
  const std::string joined = std::string(left).append(right.substr(prefix_.size()));
  const TokenId joined_id = find_or_fail(joined, index, merges);
  merges_.set(left_id, right_id, {static_cast<std::uint32_t>(index), joined_id});
  note_joint(left, left_id, right, right_id);
}

void Bpe::note_joint(std::string_view left, TokenId left_id, std::string_view right, TokenId right_id) {
  // Tokens that are symbols by themselves, however many characters they have, would make these pairs incomplete. No
  // real model merges them.
  const auto is_symbol = [&](TokenId id) {
    return id == unknown_ || (byte_fallback_ && std::find(bytes_.begin(), bytes_.end(), id) != bytes_.end());
  };
  if (segmentable_ && (is_symbol(left_id) || is_symbol(right_id))) segmentable_ = false;
  if (!segmentable_) return;
  const TokenId last = find(left.substr(utf8_before(left, left.size())));
  const TokenId first = find(right.substr(0, utf8_at(right, 0).length));
  if (last >= 0 && first >= 0) joints_.set(last, first, {0, 0});
}

bool Bpe::longer_than_a_symbol(std::string_view text) const {
  if (text.size() <= utf8_at(text, 0).length + suffix_.size() + prefix_.size()) return false;
  const TokenId id = find(text);
  return id != unknown_ && std::find(bytes_.begin(), bytes_.end(), id) == bytes_.end();
}

}  // namespace hayloft::runtime
