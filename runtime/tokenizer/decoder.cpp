#include "runtime/tokenizer/decoder.h"

#include <charconv>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/tokenizer/bpe/bytes.h"
#include "runtime/tokenizer/growth.h"
#include "runtime/tokenizer/json.h"
#include "runtime/tokenizer/normalizer.h"

namespace hayloft::runtime {
namespace {

std::string join(const std::vector<std::string>& tokens, std::string_view between) {
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += between;
    out += tokens[i];
  }
  return out;
}

// Ends where the result has more than `most` bytes, with what it has by then.
std::string replace_literal(std::string_view text, std::string_view from, std::string_view to,
                            std::size_t most = std::string_view::npos) {
  std::string out;
  for (;;) {
    const std::size_t at = from.empty() ? std::string_view::npos : text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos || out.size() > most) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

// The byte of a token <0xNN>, -1 for any other.
int byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token.back() != '>') return -1;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? static_cast<int>(byte) : -1;
}

}  // namespace

Decoder::Decoder(const Field& decoder) : where_(decoder.where()) {
  for (const Field& step : flatten_sequence(decoder, "decoders")) steps_.push_back(read_step(step));
}

Decoder::Step Decoder::read_step(const Field& field) {
  const std::string& type = field.at("type").text();
  if (type == "ByteLevel") return ByteLevel{};
  if (type == "ByteFallback") return ByteFallback{};
  if (type == "Fuse") return Fuse{};
  if (type == "Replace") {
    const Field pattern = field.at("pattern");
    const auto text = pattern.find("String");
    std::string searched = text ? text->text() : std::string();
    return Replace{read_pattern(pattern), std::move(searched), field.at("content").text()};
  }
  if (type == "Strip") {
    const auto count = [&](const char* key) { return static_cast<std::size_t>(field.at(key).token_id()); };
    return Strip{field.at("content").text(), count("start"), count("stop")};
  }
  if (type == "Metaspace") {
    const bool prepended =
        field.text("prepend_scheme", field.flag("add_prefix_space", true) ? "always" : "never") != "never";
    return Metaspace{field.text("replacement", "\u2581"), prepended};
  }
  if (type == "BPEDecoder") return WordSuffix{field.text("suffix", "</w>")};
  fail("{}: a decoder of type '{}' is not supported", field.where(), printable(type));
}

void Decoder::run(const ByteLevel&, Tokens& tokens, Pass&) {
  std::string bytes;
  for (const std::string& token : tokens) {
    if (!append_from_byte_letters(token, bytes)) bytes += token;  // an added token
  }
  tokens = {std::move(bytes)};
}

// The reference makes U+FFFD of byte tokens that are not UTF-8 together; here they stay bytes, for Utf8Stream to join.
void Decoder::run(const ByteFallback&, Tokens& tokens, Pass&) {
  for (std::string& token : tokens) {
    if (const int byte = byte_of(token); byte >= 0) token.assign(1, static_cast<char>(byte));
  }
}

void Decoder::run(const Fuse&, Tokens& tokens, Pass&) {
  tokens = {join(tokens, "")};
}

// A text is searched without a matcher, which takes longer to make than a token to decode.
void Decoder::run(const Replace& step, Tokens& tokens, Pass& pass) {
  std::optional<Regex::Matcher> matcher;
  if (step.text.empty()) matcher.emplace(step.pattern);
  std::size_t bytes = 0;
  for (std::string& token : tokens) {
    const std::size_t most = pass.growth.most() - bytes;
    token = matcher ? replace_all(token, *matcher, step.content, most)
                    : replace_literal(token, step.text, step.content, most);
    bytes += token.size();
    if (bytes > pass.growth.most()) break;
  }
  pass.growth.step(bytes);
}

void Decoder::run(const Strip& step, Tokens& tokens, Pass& pass) {
  const std::string_view mark = step.character;
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (std::size_t i = 0; !pass.continued && i < step.start && !mark.empty(); ++i) {
      if (rest.substr(0, mark.size()) != mark) break;
      rest.remove_prefix(mark.size());
    }
    for (std::size_t i = 0; i < step.stop && !mark.empty(); ++i) {
      if (rest.size() < mark.size() || rest.substr(rest.size() - mark.size()) != mark) break;
      rest.remove_suffix(mark.size());
    }
    token = std::string(rest);
  }
}

void Decoder::run(const Metaspace& step, Tokens& tokens, Pass& pass) {
  bool first = !pass.continued && step.drops_first;
  for (std::string& token : tokens) {
    token = replace_literal(token, step.replacement, std::exchange(first, false) ? "" : " ");
  }
}

void Decoder::run(const WordSuffix& step, Tokens& tokens, Pass&) {
  for (std::string& token : tokens) token = replace_literal(token, step.suffix, &token == &tokens.back() ? "" : " ");
}

std::string Decoder::decode(Tokens tokens, bool continued) const {
  const std::size_t bytes =
      std::accumulate(tokens.begin(), tokens.end(), std::size_t{0},
                      [](std::size_t sum, const std::string& token) { return sum + token.size(); });
  Growth growth(where_, bytes, tokens.size());
  Pass pass{continued, growth};
  for (const Step& step : steps_) {
    std::visit([&](const auto& known) { run(known, tokens, pass); }, step);
  }
  return join(tokens, steps_.empty() ? " " : "");
}

}  // namespace hayloft::runtime
