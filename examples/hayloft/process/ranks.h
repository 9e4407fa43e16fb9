#pragma once

#include <functional>
#include <span>
#include <string>

#include "offload/progress.h"
#include "runtime/decode/session.h"
#include "runtime/peers/agreement.h"

// Several processes that mpirun has started, as one run of the program: rank 0 prints and writes, the others compute.
namespace hayloft::cli {

// Returns whether mpirun has started more than one.
bool over_ranks();
int rank_count();            // 1 where it has not
int ranks_on_machine();      // likewise
int rank_on_machine();       // among these, from 0
bool first_rank();           // which prints and writes; true where there is one
void silence_other_ranks();  // what this process prints and notes from now on, unless it is the first

ProgressSink progress_sink();  // standard error, of the first

// Over ranks: does what each rank does by itself before it computes, on all of them at once. One line says what has
// gone wrong on any of them. Alone: does it.
void prepare_together(const std::function<void()>& work);

// Over ranks: makes sure that all have the same of these, the program, and the options that change results; then the
// sessions of these options are those of the ranks. Alone: nothing.
struct StartFacts {
  std::string weights;  // a fingerprint
  std::string options;
  std::string text;
  std::string chat = {};  // how messages are written
};
void join_ranks(const StartFacts& facts, runtime::SessionOptions& session);

// Before a rank that is not the first ends with an error of its command line: what is wrong on all ranks is said by the
// first, with which mpirun ends the others. Where nobody has said it after two seconds, this one says so.
void let_first_rank_speak(const std::string& message);

// Over ranks, from now on: only the first can be interrupted, which tells the others. By SIGINT, as alone, and by
// SIGUSR1, which mpirun passes on to its ranks, where Ctrl-C makes it end them. Alone: nothing.
void interrupt_first_rank_alone();
// Over ranks that have met, on the first, from now on: a SIGTERM is an interrupt, unless it is that of mpirun, by which
// that ends all ranks. Alone, and on the others: nothing.
void take_terminations_for_interrupts();

// The ranks, over ranks; they meet, and MPI starts, with the first call.
runtime::cluster::Communicator& meet_ranks();
// Ends the first rank, whose mpirun has ended the others because one is lost; which one it is only mpirun knows. A
// handler of SIGTERM.
void say_ended(int signal);

// The ranks once they have met; null before, and alone. And as peers: this process alone then.
runtime::cluster::Communicator* ranks();
runtime::cluster::Communicator& peers();

// Ends the ranks after the last of the work, and after an error that all of them have thrown.
void leave_ranks();
// Ends all of them at once, after an error that the others know nothing of. Returns where there are none.
void abort_ranks();

}  // namespace hayloft::cli
