#pragma once

#include <cstdint>

#include "runtime/attention/step.h"

namespace hayloft::runtime {

// Sums up what steps say of their own outputs, where they do (StepEstimate). The error of a step's layer is the mean
// over its query heads.
struct PredictedError {
  double errors = 0;       // of the steps x layers, summed
  double attended = 0;     // their shares of the softmax attended exactly, summed
  std::int64_t steps = 0;  // steps x layers
  double largest = 0;      // error of a step's layer
  int largest_layer = 0;   // of the model

  bool known() const { return steps > 0; }
  double mean() const { return known() ? errors / static_cast<double>(steps) : 0; }
  double attended_mass() const { return known() ? attended / static_cast<double>(steps) : 0; }

  void add(const StepEstimate& estimate, int layer) {
    if (estimate.error.empty()) return;
    const auto heads = static_cast<double>(estimate.error.size());
    double error = 0;
    double share = 0;
    for (const float each : estimate.error) error += double{each} / heads;
    for (const float each : estimate.attended) share += double{each} / heads;
    errors += error;
    attended += share;
    ++steps;
    if (error > largest) {
      largest = error;
      largest_layer = layer;
    }
  }
  PredictedError& operator+=(const PredictedError& other) {
    errors += other.errors;
    attended += other.attended;
    steps += other.steps;
    if (other.largest > largest) {
      largest = other.largest;
      largest_layer = other.largest_layer;
    }
    return *this;
  }
};

}  // namespace hayloft::runtime
