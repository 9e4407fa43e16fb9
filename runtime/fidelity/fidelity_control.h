#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/attention/method_ladder.h"
#include "runtime/attention/step_observer.h"
#include "runtime/fidelity/running_stats.h"

// Keeps a share of the attention mass while decoding (--fidelity, docs/auto.md).
namespace hayloft::runtime {

// The fidelity of a step in a layer: the share of the exact softmax that lies on what was attended, averaged over the
// query heads of a KV head, of the KV head that catches least. Throws Error, naming the option, unless `least` is a
// share above 0 and up to 1.
void check_fidelity(double least);

// The share that `auto` keeps where no other is asked for: behind 28,758 tokens Gemma 3 270M answers four questions
// about hidden numbers as dense attention does, where `auto` by speed alone answered none (docs/auto.md).
inline constexpr double default_fidelity = 0.95;

// Chooses the level of a MethodLadder that a layer is to attend by: the highest that any of its last samples asked for;
// the exact one before there are enough of them.
class LevelChoice {
 public:
  static constexpr int enough = 4;
  static constexpr int kept = 8;

  explicit LevelChoice(int exact_level) : exact_level_(exact_level) {}

  void add(int needed);  // the lowest level that would have been enough in a step, exact_level at most
  int level() const;
  // Returns whether level() comes of samples: there are enough of them, or one has asked for the exact level.
  bool decided() const;

 private:
  int exact_level_;
  std::deque<int> needed_;
};

// The findings of a run.
struct FidelityReport {
  double asked = 0;
  RunningStats measured;                 // of the samples whose step left positions out
  std::map<int, RunningStats> by_layer;  // the same by the model's layer
  std::int64_t samples = 0;              // all of them
  int layers = 0;                        // in which some other level than the exact one is worth it
  int exact_layers = 0;                  // of those, that attend by the exact one all the same
};
// A line without a newline: the share that was measured, in how many samples, which layer had least.
std::string fidelity_line(const FidelityReport& report);

// Observes the steps of sessions, one after another, and has their layers attend by the cheapest level of a method's
// ladder that catches enough. A layer begins with dense attention; its first samples, one at each step until one needs
// that or there are enough, and then as many as are predicted to cost a thirtieth of its attention, and one whenever
// the context has grown by an eighth, find which level each of these steps needed, by attending once more by other
// levels beside what is decoded. Which steps are samples depends on their numbers and on predictions, never on a clock:
// the same run has the same tokens again. For the thread that decodes.
class FidelityControl : public StepObserver {
 public:
  // Throws Error on a method that cannot attend to more than it was made for.
  FidelityControl(const MethodOptions& method, int head_dim, double least);

  // To decode the next step with, until update() has changed something.
  const SharedMethod& method() const { return method_; }
  // After a step: whether the samples taken since have changed the method.
  bool update();
  // Returns what the user is to know since the last call, said once: that some layers take dense attention. A line or
  // nothing.
  std::string take_note();

  bool wants(int layer, std::int64_t position) override;
  void see(const Step& step, const Method& by) override;
  std::int64_t unwanted_from(std::int64_t position) const override;
  void passed_over(std::int64_t tokens) override;

  FidelityReport report() const;

 private:
  struct Layer {
    explicit Layer(int exact_level) : choice(exact_level) {}
    LevelChoice choice;
    std::int64_t calls = 0;
    std::int64_t next = 0;   // the call that is the next sample
    std::int64_t grown = 0;  // the position at which there is one before that
    int global_layer = 0;
    bool selects = false;  // some level is worth it at this length
  };
  class Probe;

  double least_;
  double enough_;  // what a level has to catch in a sample, to be held for good enough
  std::shared_ptr<const MethodLadder> ladder_;
  SharedMethod method_;
  std::vector<int> levels_;      // by global layer, as method_ has them
  std::map<int, Layer> layers_;  // by the model's layer
  FidelityReport report_;
  MethodScratch scratch_;
  bool noted_ = false;
};

}  // namespace hayloft::runtime
