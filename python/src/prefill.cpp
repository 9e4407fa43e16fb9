#include "python/src/prefill.h"

#include <algorithm>
#include <set>

#include "offload/error.h"
#include "runtime/context/reading_note.h"

namespace hayloft::python {
namespace {

using Kind = runtime::PrefillOptions::Kind;

// Says what a way takes behind its name.
struct Way {
  Kind kind;
  std::set<std::string> words;
  const char* example;
};

const Way& way_named(const std::string& name, const std::string& text) {
  static const Way ways[] = {{Kind::exact, {}, "exact"},
                             {Kind::window, {"window", "sinks"}, "window:window=4096:sinks=4"},
                             {Kind::topk, {"k", "k_share", "window"}, "topk:k=1024:window=4096"},
                             {Kind::sparse, {"mass", "density", "fidelity"}, "sparse:mass=0.98"}};
  const auto found = std::ranges::find_if(ways, [&](const Way& way) { return name == runtime::name(way.kind); });
  if (found == std::end(ways)) fail("prefill '{}': must be one of exact, window, topk, sparse", text);
  return *found;
}

}  // namespace

runtime::PrefillOptions read_prefill(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const Way& way = way_named(text.substr(0, colon), text);
  std::string note = "chunk_tokens=1 prefill=" + text.substr(0, colon);
  int words = 0;
  for (std::size_t begin = colon; begin < text.size(); ++words) {
    const std::size_t end = std::min(text.find(':', begin + 1), text.size());
    const std::string word = text.substr(begin + 1, end - begin - 1);
    if (!way.words.contains(word.substr(0, word.find('='))) || word.find(' ') != std::string::npos) {
      fail("prefill '{}': {} does not use '{}'; write it like {}", text, runtime::name(way.kind), word, way.example);
    }
    note += " " + word;
    begin = end;
  }
  if (way.kind == Kind::sparse && words > 1) fail("prefill '{}': sparse takes one of mass, density, fidelity", text);
  runtime::PrefillOptions prefill;
  try {
    prefill = runtime::read_note(note, "prefill").prefill;
  } catch (const Error&) {
    fail("prefill '{}': a value is missing, stands twice or is out of range; write it like {}", text, way.example);
  }
  if (text.find("density=") != std::string::npos && prefill.sparse.density == 0) {
    fail("prefill '{}': the density must be above 0", text);
  }
  return prefill;
}

}  // namespace hayloft::python
