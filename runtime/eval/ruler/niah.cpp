#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/eval/needle/text.h"
#include "runtime/eval/ruler/random.h"
#include "runtime/eval/ruler/ruler.h"

// Needles in a haystack: keys with values, some of which are asked for.
namespace hayloft::runtime::eval {
namespace {

enum class Type : std::uint8_t { words, numbers, uuids };
enum class Haystack : std::uint8_t { noise, text, needles };

struct Niah {
  std::string_view task;
  int keys, values, queries;
  Type key, value;
  Haystack haystack;
};
constexpr Niah tasks[] = {
    {"niah_single_1", 1, 1, 1, Type::words, Type::numbers, Haystack::noise},
    {"niah_single_2", 1, 1, 1, Type::words, Type::numbers, Haystack::text},
    {"niah_single_3", 1, 1, 1, Type::words, Type::uuids, Haystack::text},
    {"niah_multikey_1", 4, 1, 1, Type::words, Type::numbers, Haystack::text},
    {"niah_multikey_2", 1, 1, 1, Type::words, Type::numbers, Haystack::needles},
    {"niah_multikey_3", 1, 1, 1, Type::uuids, Type::uuids, Haystack::needles},
    {"niah_multivalue", 1, 4, 1, Type::words, Type::numbers, Haystack::text},
    {"niah_multiquery", 4, 1, 4, Type::words, Type::numbers, Haystack::text},
};

constexpr int depth_steps = 40;  // a needle in text lies at one of these, 0% to 100%

std::string uuid(std::mt19937_64& random) {  // version 4, variant 1
  const std::uint64_t high = random(), low = random();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xffff, high & 0xfff,
                     (low >> 48 & 0x3fff) | 0x8000, low & 0xffffffffffff);
}

std::string listed(const std::vector<std::string>& items) {  // "a", "a and b", "a, b, and c"
  if (items.size() < 3) return fmt::format("{}", fmt::join(items, " and "));
  const std::vector<std::string> first(items.begin(), items.end() - 1);
  return fmt::format("{}, and {}", fmt::join(first, ", "), items.back());
}

class Generator : public RulerGenerator {
 public:
  Generator(const Niah& niah, const RulerOptions& options, std::int64_t ctx_size)
      : niah_(niah),
        kind_(niah.value == Type::uuids ? "uuid" : "number"),
        digits_(options.digits),
        to_drop_(niah.haystack == Haystack::text ? 500
                 : ctx_size < 4096               ? 5
                                                 : 25),
        filler_(options.haystack.empty() ? make_grammar(options.seed) : make_text(options.haystack)) {}

  RulerText write(int, std::int64_t units, std::mt19937_64 random) override {
    std::set<std::string> used;
    std::vector<std::string> keys, needles;
    std::vector<std::vector<std::string>> values;
    for (int i = 0; i < niah_.keys; ++i) {
      keys.push_back(fresh_key(used, random));
      values.emplace_back();
      for (int j = 0; j < niah_.values; ++j) {
        values.back().push_back(value_of(niah_.value, random));
        needles.push_back(needle_sentence(kind_, keys.back(), values.back().back()));
      }
    }
    shuffle(needles, random);

    std::vector<std::string> asked;
    RulerText text;
    for (const std::int64_t key : choose(niah_.keys, niah_.queries, random)) {
      asked.push_back(keys[static_cast<std::size_t>(key)]);
      const auto& found = values[static_cast<std::size_t>(key)];
      text.outputs.insert(text.outputs.end(), found.begin(), found.end());
    }
    const bool several = niah_.queries * niah_.values > 1;
    const NeedleQuestion question = needle_question(kind_, listed(asked), several);
    const std::string task =
        several ? fmt::format(
                      "Special magic {}s are hidden in the following text. Keep them in mind: some of them "
                      "will be asked for at its end.\n",
                      kind_)
                : fmt::format(
                      "A special magic {} is hidden in the following text. Keep it in mind: it will be asked "
                      "for at its end.\n",
                      kind_);
    text.input = task + context(units, std::move(needles), used, random) + question.question;
    text.answer_prefix = question.answer;
    return text;
  }

  std::int64_t least_units(int) const override { return niah_.haystack == Haystack::text ? 20 : niah_.keys; }
  std::int64_t units_to_drop() const override { return to_drop_; }

 private:
  std::string value_of(Type type, std::mt19937_64& random) const {
    if (type == Type::uuids) return uuid(random);
    return type == Type::numbers ? random_digits(random, digits_) : needle_key(random);
  }

  std::string fresh_key(std::set<std::string>& used, std::mt19937_64& random) const {
    std::string key = value_of(niah_.key, random);
    while (!used.insert(key).second) key = value_of(niah_.key, random);
    return key;
  }

  std::string context(std::int64_t units, std::vector<std::string> needles, std::set<std::string>& used,
                      std::mt19937_64& random) {
    if (niah_.haystack == Haystack::text) return text_with(units, needles, random);
    std::vector<std::string> lines;
    for (std::int64_t i = 0; i < units; ++i) {
      if (niah_.haystack == Haystack::noise) {
        lines.emplace_back(ruler_noise);
      } else {
        const std::string key = fresh_key(used, random);
        lines.push_back(needle_sentence(kind_, key, value_of(niah_.value, random)));
      }
    }
    scatter(lines, std::move(needles), random);
    return fmt::format("{}", fmt::join(lines, "\n"));
  }

  // The first `words` words of the filler, needles between its sentences at depths of their own.
  std::string text_with(std::int64_t words, const std::vector<std::string>& needles, std::mt19937_64& random) {
    std::vector<std::string> sentences;
    for (std::int64_t left = words; left > 0;) {
      std::string sentence = filler_.sentence(sentences.size());
      std::size_t end = 0;
      for (; left > 0 && end != std::string::npos; --left) end = sentence.find(' ', end == 0 ? 0 : end + 1);
      sentences.push_back(sentence.substr(0, end));
    }
    const auto count = static_cast<double>(sentences.size());
    std::string text;
    std::size_t written = 0;
    const auto write_until = [&](std::size_t end) {
      for (; written < end; ++written) text += (text.empty() ? "" : " ") + sentences[written];
    };
    const auto steps = choose(depth_steps, static_cast<std::int64_t>(needles.size()), random);
    for (std::size_t i = 0; i < needles.size(); ++i) {
      const double percent = std::round(100.0 * static_cast<double>(steps[i]) / (depth_steps - 1));
      write_until(static_cast<std::size_t>(count * percent / 100));
      text += (text.empty() ? "" : " ") + needles[i];
    }
    write_until(sentences.size());
    return text;
  }

  Niah niah_;
  std::string_view kind_;  // what is hidden, in the needle's words
  int digits_;
  std::int64_t to_drop_;
  Filler filler_;
};

}  // namespace

bool hides_in_text(std::string_view task) {
  return std::ranges::any_of(tasks,
                             [&](const Niah& each) { return each.task == task && each.haystack == Haystack::text; });
}

bool hides_numbers(std::string_view task) {
  return std::ranges::any_of(tasks, [&](const Niah& each) { return each.task == task && each.value == Type::numbers; });
}

std::unique_ptr<RulerGenerator> make_ruler_niah(std::string_view task, const RulerOptions& options,
                                                std::int64_t ctx_size) {
  const auto* niah =
      std::find_if(std::begin(tasks), std::end(tasks), [&](const Niah& each) { return each.task == task; });
  return std::make_unique<Generator>(*niah, options, ctx_size);
}

}  // namespace hayloft::runtime::eval
