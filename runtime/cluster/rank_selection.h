#pragma once

#include "runtime/attention/attender.h"

namespace hayloft::runtime::cluster {

// Positions [lists][k] of all ranks, whole ones, as one machine selects them; with alpha where it is wanted. Every rank
// finds the best of its own blocks, and of all these the best are taken (JointRanking). One all-gather; where several
// query heads that share a list rank by softmaxes at times a further, short one.
Selection select_over_ranks(Communicator& ranks, const Step& step, const SelectionPlan& plan, const Ranking& ranking);

}  // namespace hayloft::runtime::cluster
