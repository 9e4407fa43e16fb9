#include <array>
#include <string>

#include "offload/error.h"
#include "runtime/eval/needle/haystack.h"
#include "runtime/eval/needle/words.h"

namespace hayloft::runtime::eval {
namespace {

constexpr std::array names = {
    "Adela",  "Bruno",  "Clara",  "Dario",  "Edith",  "Felix",  "Greta",  "Hugo",     "Irene",
    "Jonas",  "Karla",  "Leo",    "Marta",  "Nils",   "Olga",   "Pavel",  "Quentin",  "Rosa",
    "Stefan", "Teresa", "Ulrich", "Vera",   "Walter", "Yvonne", "Arthur", "Beatrice", "Conrad",
    "Diana",  "Emil",   "Flora",  "Gustav", "Helena", "Ivan",   "Judith", "Kasper",   "Lydia",
};
constexpr std::array places = {
    "the harbour",    "the old mill", "the station",   "the market",      "the northern gate", "the library",
    "the orchard",    "the garrison", "the riverbank", "the workshop",    "the upper town",    "the monastery",
    "the quarry",     "the inn",      "the bridge",    "the observatory", "the vineyard",      "the courthouse",
    "the lighthouse", "the common",   "the theatre",
};
constexpr std::array times = {
    "In the morning",   "Towards evening",        "That winter",         "After the storm",   "Before dawn",
    "On the third day", "Late in the summer",     "During the feast",    "As the bells rang", "When the rain stopped",
    "Years later",      "At the end of the week", "Not long afterwards", "Once more",         "For a while",
    "By candlelight",
};
constexpr std::array transitive = {
    "carried",   "described", "followed",  "admired",  "repaired",  "forgot",    "remembered", "sold",
    "bought",    "painted",   "measured",  "guarded",  "found",     "lost",      "praised",    "examined",
    "borrowed",  "collected", "ignored",   "restored", "feared",    "hid",       "traded",     "sketched",
    "counted",   "polished",  "inherited", "mistook",  "polluted",  "defended",  "watched",    "weighed",
    "sheltered", "refused",   "offered",   "copied",   "neglected", "preferred", "studied",    "surrounded",
};
constexpr std::array intransitive = {
    "waited",     "slept",    "laughed",  "hesitated", "returned",  "vanished", "wandered",
    "sang",       "listened", "trembled", "departed",  "recovered", "argued",   "rejoiced",
    "complained", "worked",   "rested",   "travelled", "agreed",    "wept",
};
constexpr std::array adverbs = {
    "slowly",    "carefully",       "gladly",    "in silence",  "with great care", "without a word",
    "as usual",  "almost daily",    "proudly",   "secretly",    "at length",       "in vain",
    "by chance", "with some doubt", "patiently", "reluctantly",
};
constexpr std::array conjunctions = {"because", "although", "while", "until", "before", "after", "whenever", "since"};

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

class Grammar : public SentenceSource {
 public:
  explicit Grammar(std::uint64_t seed)
      : random_(seed), adjectives_(lines(words::adjectives)), nouns_(lines(words::nouns)) {}

  std::string next() override {
    std::string sentence;
    if (chance(3)) sentence = fmt::format("{}, ", pick(times));
    sentence += clause();
    if (chance(3)) {
      sentence += fmt::format(" {} {}", pick(conjunctions), clause());
    } else if (chance(4)) {
      sentence += fmt::format(", and {}", clause());
    }
    if (sentence[0] >= 'a' && sentence[0] <= 'z') sentence[0] = static_cast<char>(sentence[0] - 'a' + 'A');
    return sentence + '.';
  }

 private:
  bool chance(std::uint64_t one_in) { return draw(random_, one_in) == 0; }

  template <class List>
  const typename List::value_type& pick(const List& list) {
    return list[draw(random_, list.size())];
  }

  std::string thing() {
    const char* determiner = pick(std::array{"the", "the", "a certain", "every", "no", "their", "this", "another"});
    std::string phrase = fmt::format("{} {}{}", determiner, chance(5) ? "" : pick(adjectives_) + " ", pick(nouns_));
    if (chance(5)) phrase += fmt::format(" of {} {}", pick(std::array{"the", "some", "their"}), pick(nouns_));
    return phrase;
  }

  std::string subject() { return chance(2) ? std::string(pick(names)) : thing(); }

  std::string clause() {
    switch (draw(random_, 6)) {
      case 0:
        return fmt::format("{} {} {}", subject(), pick(intransitive), pick(adverbs));
      case 1:
        return fmt::format("{} {} {} near {}", subject(), pick(transitive), thing(), pick(places));
      case 2:
        return fmt::format("{} was more {} than {}", thing(), pick(adjectives_), thing());
      case 3:
        return fmt::format("{} and {} {} {}", subject(), subject(), pick(transitive), thing());
      case 4:
        return fmt::format("at {} {} {} {}", pick(places), subject(), pick(transitive), thing());
      default:
        return fmt::format("{} {} {} {}", subject(), pick(transitive), thing(), pick(adverbs));
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> adjectives_;
  std::vector<std::string> nouns_;
};

}  // namespace

std::unique_ptr<SentenceSource> make_grammar(std::uint64_t seed) {
  return std::make_unique<Grammar>(seed);
}

}  // namespace hayloft::runtime::eval
