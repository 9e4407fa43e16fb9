#include "runtime/eval/needle/haystack.h"

#include <algorithm>

#include "offload/error.h"
#include "offload/text_file.h"

namespace hayloft::runtime::eval {
namespace {

constexpr std::size_t longest_sentence = 400;

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

class Text : public SentenceSource {
 public:
  explicit Text(std::vector<std::string> sentences) : sentences_(std::move(sentences)) {}

  std::string next() override {
    const std::string& sentence = sentences_[at_];
    at_ = (at_ + 1) % sentences_.size();
    return sentence;
  }

 private:
  std::vector<std::string> sentences_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::string> split_sentences(std::string_view text) {
  std::vector<std::string> sentences;
  std::string sentence;
  auto ends_sentence = [&] {
    const std::size_t last = sentence.find_last_not_of("\"')]}*_");
    return last != std::string::npos && (sentence[last] == '.' || sentence[last] == '!' || sentence[last] == '?');
  };
  for (std::size_t i = 0; i < text.size();) {
    if (!is_space(text[i])) {
      sentence += text[i++];
      continue;
    }
    while (i < text.size() && is_space(text[i])) ++i;
    if (sentence.empty()) continue;
    if (ends_sentence() || sentence.size() >= longest_sentence) {
      sentences.push_back(std::move(sentence));
      sentence.clear();
    } else {
      sentence += ' ';
    }
  }
  if (!sentence.empty() && sentence.back() == ' ') sentence.pop_back();
  if (!sentence.empty()) sentences.push_back(std::move(sentence));
  return sentences;
}

std::unique_ptr<SentenceSource> make_text(const std::filesystem::path& path) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path, error)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
      if (entry.is_regular_file(error)) files.push_back(entry.path());
    }
    if (error) fail("--haystack {}: {}", path.string(), error.message());
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  std::vector<std::string> sentences;
  for (const auto& file : files) {
    std::vector<std::string> more = split_sentences(offload::read_text_file("--haystack", file));
    std::move(more.begin(), more.end(), std::back_inserter(sentences));
  }
  if (sentences.empty()) fail("--haystack {}: there is no text in it", path.string());
  return std::make_unique<Text>(std::move(sentences));
}

std::uint64_t draw(std::mt19937_64& random, std::uint64_t n) {
  // Rejection keeps it uniform; std::uniform_int_distribution differs between standard libraries.
  const std::uint64_t limit = std::mt19937_64::max() - std::mt19937_64::max() % n;
  std::uint64_t x;
  do {
    x = random();
  } while (x >= limit);
  return x % n;
}

}  // namespace hayloft::runtime::eval
