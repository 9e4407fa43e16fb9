#include "runtime/eval/needle/context.h"

#include <set>

#include "offload/error.h"

namespace hayloft::runtime::eval {
namespace {

// At least `bytes` bytes of filler with the needles between its sentences. The first `opening` bytes stay free of
// needles.
std::string text_with_needles(Filler& filler, const std::vector<Needle>& needles, std::size_t bytes,
                              std::size_t opening) {
  std::string text;
  text.reserve(bytes + needles.size() * 80 + 512);
  auto add = [&](const std::string& sentence) {
    if (!text.empty()) text += ' ';
    text += sentence;
  };
  std::size_t written = 0;
  auto next = needles.begin();
  for (std::size_t i = 0; written < bytes; ++i) {
    const double depth = 100.0 * static_cast<double>(written) / static_cast<double>(bytes);
    for (; next != needles.end() && written >= opening && next->depth <= depth; ++next) add(next->sentence());
    add(filler.sentence(i));
    written += filler.sentence(i).size() + 1;
  }
  for (; next != needles.end(); ++next) add(next->sentence());
  return text;
}

[[noreturn]] void refuse_length(std::int64_t length, std::int64_t needles) {
  fail("--ctx-size {}: too short for {} needles; use a longer context or fewer --depths", length, needles);
}

}  // namespace

void require_room(std::int64_t needles, std::int64_t length) {
  constexpr std::int64_t least = 8;  // tokens of one, for its words and digits
  if (needles > length / least) refuse_length(length, needles);
}

std::vector<Needle> make_needles(int depths, int digits, std::mt19937_64& random) {
  if (depths > needle_keys() / 2) {  // they are drawn until they differ
    fail("--depths {}: there are names for {} needles at most", depths, needle_keys() / 2);
  }
  std::vector<Needle> needles;
  std::set<std::string> keys;
  while (static_cast<int>(needles.size()) < depths) {
    Needle needle;
    needle.depth = depths == 1 ? 50.0 : 100.0 * static_cast<double>(needles.size()) / (depths - 1);
    needle.key = needle_key(random);
    needle.digits = random_digits(random, digits);
    if (keys.insert(needle.key).second) needles.push_back(std::move(needle));
  }
  return needles;
}

std::vector<std::int32_t> needle_context(const Tokenizer& tokenizer, Filler& filler, const std::vector<Needle>& needles,
                                         std::int64_t length) {
  // Whole sentences rarely add up to a length, so the text is made a little too long and starts in the middle of its
  // opening.
  std::vector<std::int32_t> context = tokenizer.encode("", true);
  const std::int64_t wanted = length - static_cast<std::int64_t>(context.size());
  std::int64_t bytes = 3 * wanted;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const std::int64_t opening = std::min<std::int64_t>(1000, bytes / 4);
    const std::vector<std::int32_t> tokens = tokenizer.encode(
        text_with_needles(filler, needles, static_cast<std::size_t>(bytes), static_cast<std::size_t>(opening)), false);
    const double bytes_per_token = static_cast<double>(bytes) / static_cast<double>(tokens.size());
    const std::int64_t surplus = static_cast<std::int64_t>(tokens.size()) - wanted;
    const auto most = static_cast<std::int64_t>(0.8 * static_cast<double>(opening) / bytes_per_token);
    if (surplus >= 0 && surplus <= most) {
      context.insert(context.end(), tokens.begin() + surplus, tokens.end());
      return context;
    }
    bytes += static_cast<std::int64_t>(bytes_per_token * static_cast<double>(most / 2 - surplus));
    if (bytes < 400) break;
  }
  refuse_length(length, static_cast<std::int64_t>(needles.size()));
}

std::string digits_of_answer(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n\t");
  if (begin == std::string::npos) return "";
  const std::size_t end = text.find_first_not_of("0123456789", begin);
  if (end == begin) return text.substr(begin);
  return text.substr(begin, end == std::string::npos ? end : end - begin);
}

}  // namespace hayloft::runtime::eval
