#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "runtime/eval/ruler/random.h"
#include "runtime/eval/ruler/ruler.h"

// Variable tracking: a chain of variables that all come to hold one value, its links scattered among lines of noise.
namespace hayloft::runtime::eval {
namespace {

constexpr int hops = 4;  // links behind the first, which names the value
constexpr int name_letters = 5;
constexpr int example_name_letters = 3;
constexpr int example_tokens = 500;  // at most

std::string tracking(std::int64_t noise_lines, int letters, std::set<std::string>& names, std::mt19937_64& random,
                     RulerText& text) {
  const std::string value = fmt::format("{}", 10000 + draw(random, 89999));
  std::vector<std::string> chain, links;
  while (static_cast<int>(chain.size()) < hops + 1) {
    std::string name = random_letters(letters, 'A', random);
    if (names.insert(name).second) chain.push_back(std::move(name));
  }
  links.push_back(fmt::format("VAR {} = {}", chain[0], value));
  for (std::size_t i = 1; i < chain.size(); ++i)
    links.push_back(fmt::format("VAR {} = VAR {} ", chain[i], chain[i - 1]));

  std::vector<std::string> lines(static_cast<std::size_t>(noise_lines), std::string(ruler_noise));
  scatter(lines, std::move(links), random);
  text.input = fmt::format(
      "In the text below variables are assigned, either a value or another variable's. Keep track of which variables "
      "come to hold which value.\n\n{}\n\nQuestion: which variables hold the value {}, directly or through others?",
      fmt::join(lines, "\n"), value);
  text.answer_prefix = fmt::format(" Answer: the value {} is held by {} variables, namely", value, chain.size());
  text.outputs = chain;
  return fmt::format("{}{} {}\n\n", text.input, text.answer_prefix, fmt::join(chain, " "));
}

class TrackingGenerator : public RulerGenerator {
 public:
  TrackingGenerator(std::int64_t ctx_size, const Tokenizer& tokenizer) : to_drop_(ctx_size < 4096 ? 5 : 10) {
    for (;; ++example_lines_) {
      std::set<std::string> names;
      RulerText text;
      std::mt19937_64 random(0);
      const std::string example = tracking(example_lines_ + 1, example_name_letters, names, random, text);
      if (static_cast<int>(tokenizer.encode(example).size()) > example_tokens) break;
    }
  }

  RulerText write(int, std::int64_t units, std::mt19937_64 random) override {
    std::set<std::string> names;
    RulerText text;
    const std::string example = tracking(example_lines_, example_name_letters, names, random, text);
    tracking(units, name_letters, names, random, text);
    text.input = example + text.input;
    return text;
  }
  std::int64_t least_units(int) const override { return 1; }
  std::int64_t units_to_drop() const override { return to_drop_; }

 private:
  std::int64_t to_drop_;
  std::int64_t example_lines_ = 0;
};

}  // namespace

std::unique_ptr<RulerGenerator> make_ruler_tracking(std::int64_t ctx_size, const Tokenizer& tokenizer) {
  return std::make_unique<TrackingGenerator>(ctx_size, tokenizer);
}

}  // namespace hayloft::runtime::eval
