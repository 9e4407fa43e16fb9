#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "runtime/eval/needle/words.h"
#include "runtime/eval/ruler/random.h"
#include "runtime/eval/ruler/ruler.h"

// Counting words: the common ones of a numbered list, and the frequent ones of a coded text.
namespace hayloft::runtime::eval {
namespace {

constexpr int common_words = 10;  // that are asked for
constexpr int short_context = 4096;

// Different lower-case words without end: those of runtime/eval/needle/words in random order, then syllables strung
// together.
class Words {
 public:
  explicit Words(std::mt19937_64& random) : random_(&random) {
    for (std::string_view list : {words::adjectives, words::nouns}) {
      while (!list.empty()) {
        const std::size_t end = list.find('\n');
        if (used_.emplace(list.substr(0, end)).second) listed_.emplace_back(list.substr(0, end));
        list.remove_prefix(end + 1);
      }
    }
    shuffle(listed_, random);
  }

  std::string next() {
    if (!listed_.empty()) {
      std::string word = std::move(listed_.back());
      listed_.pop_back();
      return word;
    }
    for (;;) {
      std::string word;
      for (std::uint64_t left = 3 + draw(*random_, 2); left > 0; --left) {
        word += "bdfghklmnprstvz"[draw(*random_, 15)];
        word += "aeiou"[draw(*random_, 5)];
      }
      if (used_.insert(word).second) return word;
    }
  }

 private:
  std::mt19937_64* random_;
  std::vector<std::string> listed_;
  std::set<std::string> used_;
};

struct Frequencies {
  int common, uncommon;
};

// A list of `count` different words, ten of them common, and the question about it.
RulerText word_list(std::int64_t count, Frequencies times, Words& words, std::mt19937_64& random) {
  RulerText text;
  std::vector<std::string> list;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string word = words.next();
    const bool common = i < common_words;
    if (common) text.outputs.push_back(word);
    list.insert(list.end(), static_cast<std::size_t>(common ? times.common : times.uncommon), word);
  }
  shuffle(list, random);
  text.input =
      "Below is a numbered list of words. Some of them occur far more often than the others; keep those in mind.\n";
  for (std::size_t i = 0; i < list.size(); ++i) text.input += fmt::format("{}{}. {}", i > 0 ? " " : "", i + 1, list[i]);
  text.input += fmt::format("\nQuestion: which {} words occur most often in the list?", common_words);
  text.answer_prefix = fmt::format(" Answer: the {} words that occur most often in the list are:", common_words);
  return text;
}

class CommonWords : public RulerGenerator {
 public:
  explicit CommonWords(std::int64_t ctx_size) : short_(ctx_size < short_context) {}

  RulerText write(int, std::int64_t units, std::mt19937_64 random) override {
    Words words(random);
    const RulerText example = short_ ? word_list(20, {3, 1}, words, random) : word_list(40, {10, 3}, words, random);
    RulerText text = word_list(units, short_ ? Frequencies{6, 1} : Frequencies{30, 3}, words, random);
    std::string answer;
    for (std::size_t i = 0; i < example.outputs.size(); ++i)
      answer += fmt::format(" {}. {}", i + 1, example.outputs[i]);
    text.input = example.input + example.answer_prefix + answer + "\n\n" + text.input;
    return text;
  }
  std::int64_t least_units(int) const override { return common_words + 1; }
  std::int64_t units_to_drop() const override { return 10; }

 private:
  bool short_;
};

constexpr double alpha = 2.0;  // of the zeta distribution
constexpr int coded_letters = 6;
constexpr int asked_words = 3;

class FrequentWords : public RulerGenerator {
 public:
  explicit FrequentWords(std::int64_t ctx_size)
      : vocabulary_(std::max<std::int64_t>(asked_words + 2, (ctx_size - 50) / 50)) {}

  // The word of rank r is written units * r^-alpha / zeta(alpha) times, rounded down; the first rank is dots.
  RulerText write(int, std::int64_t units, std::mt19937_64 random) override {
    RulerText text;
    std::vector<std::string> coded;
    std::set<std::string> used;
    for (std::int64_t rank = 1; rank <= vocabulary_; ++rank) {
      std::string word = random_letters(coded_letters, 'a', random);
      while (!used.insert(word).second) word = random_letters(coded_letters, 'a', random);
      if (rank == 1) word = "...";
      const double times =
          static_cast<double>(units) * std::pow(static_cast<double>(rank), -alpha) / std::riemann_zeta(alpha);
      coded.insert(coded.end(), static_cast<std::size_t>(times), word);
      if (rank > 1 && rank <= 1 + asked_words) text.outputs.push_back(word);
    }
    shuffle(coded, random);
    text.input = fmt::format(
        "The following text is in code. Count how often each of its words occurs; the dots stand for nothing and do "
        "not count.\n{}\nQuestion: leaving out the dots, which {} words of the coded text occur most often?",
        fmt::join(coded, " "), asked_words);
    text.answer_prefix = fmt::format(" Answer: the {} words that occur most often in the coded text are:", asked_words);
    return text;
  }
  std::int64_t least_units(int) const override { return 100; }  // those asked for occur 15, 6 and 3 times
  std::int64_t units_to_drop() const override { return 10; }

 private:
  std::int64_t vocabulary_;
};

}  // namespace

std::unique_ptr<RulerGenerator> make_ruler_common_words(std::int64_t ctx_size) {
  return std::make_unique<CommonWords>(ctx_size);
}

std::unique_ptr<RulerGenerator> make_ruler_frequent_words(std::int64_t ctx_size) {
  return std::make_unique<FrequentWords>(ctx_size);
}

}  // namespace hayloft::runtime::eval
