#include "runtime/fidelity/audit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "gpu/make_backend.h"
#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr std::size_t most_fresh = 4096;  // take_measured() keeps

// Until a measurement has been timed: of the K and V that one thread gets through a second, as seen on a slow machine.
constexpr double guessed_bytes_per_second = 3e9;

// Lowers the calling thread's priority, as far as the system lets us: then it only takes processors that nothing else
// wants.
void take_lowest_priority() {
  [[maybe_unused]] const int refused = setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
}

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// SplitMix64's finaliser: neighbouring numbers give unrelated ones.
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

AuditOptions checked(const AuditOptions& options, const Auditor::Measure& measure) {
  check_audit(options);
  if (!measure) throw std::logic_error("Auditor: there is nothing that measures");
  return options;
}

}  // namespace

void check_audit(const AuditOptions& options) {
  if (!(options.rate > 0 && options.rate <= 1)) {
    fail("--audit {}: must be a share above 0 and up to 1, as in 1% or 0.01", options.rate);
  }
  if (!(options.time_share >= 0)) {
    fail("an audit cannot take a share of {} of the time; use 0 (no limit) or more", options.time_share);
  }
  if (options.pending < 1) fail("an audit needs room for a sample that waits; {} is too few", options.pending);
}

bool SampleChoice::chosen(std::int64_t call) const {
  const double stretch = std::floor(static_cast<double>(call) * rate_);
  const auto begin = static_cast<std::int64_t>(std::ceil(stretch / rate_));
  const auto end = static_cast<std::int64_t>(std::ceil((stretch + 1) / rate_));
  const std::uint64_t place = scramble(scramble(seed_) + static_cast<std::uint64_t>(stretch));
  return call - begin ==
         static_cast<std::int64_t>(place % static_cast<std::uint64_t>(std::max<std::int64_t>(1, end - begin)));
}

Auditor::Auditor(const gpu::Backend& backend, const AuditOptions& options, Measure measure)
    : threads_(backend.threads()),
      on_processors_(backend.name() == "cpu"),
      options_(checked(options, measure)),
      measure_(std::move(measure)),
      choice_(options.rate, options.seed),
      worker_([this] { work(); }) {}

Auditor::~Auditor() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (worker_.joinable()) worker_.join();
}

// If decoding needs the processors it is their time that counts, shared among the threads: what else the machine is
// busy with makes decoding longer, but leaves it no more time to give away. Measuring is in the process' time as well,
// and not decoding. The mutex is held.
double Auditor::decoding_clock() const {
  if (!on_processors_) return seconds_of(CLOCK_MONOTONIC);
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID) / threads_.count() - report_.measure_seconds;
}

bool Auditor::wants(int layer, std::int64_t position) {
  const std::lock_guard lock(mutex_);
  const double now = decoding_clock();
  // From one question to the next time passes that is not spent decoding.
  const bool same_step = position == last_position_ && layer > last_layer_;
  const bool goes_on = same_step || (calls_ > 0 && position == last_position_ + 1);
  if (goes_on) report_.decode_seconds += now - last_call_;
  last_call_ = now;
  last_position_ = position;
  last_layer_ = layer;
  ++report_.calls;
  if (!waiting_.empty() && affordable()) wake_.notify_one();
  if (!choice_.chosen(calls_++) || ending_) return false;
  ++report_.chosen;
  // If time is short, a second copy would only wait for the first.
  const int room = options_.time_share > 0 ? 1 : options_.pending;
  if (static_cast<int>(waiting_.size()) < room) return true;
  ++report_.dropped;
  return false;
}

void Auditor::see(const Step& step, const Method& by) {
  const double start = seconds_of(CLOCK_MONOTONIC);
  auto sample = std::make_unique<StepSample>(step, by);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(sample));
    report_.copy_seconds += seconds_of(CLOCK_MONOTONIC) - start;
  }
  wake_.notify_one();
}

// Returns whether the time so far pays for measuring the sample that has waited longest. The mutex is held.
bool Auditor::affordable() const {
  if (options_.time_share == 0) return true;
  const double guess = 1 / (guessed_bytes_per_second * threads_.count());
  const double next = seconds_per_byte_.value_or(guess) * static_cast<double>(waiting_.front()->bytes());
  return report_.copy_seconds + report_.measure_seconds + next <= options_.time_share * report_.decode_seconds;
}

void Auditor::measured(StepFidelity fidelity, double seconds) {
  report_.add(fidelity);
  report_.measure_seconds += seconds;
  fresh_.push_back(std::move(fidelity));
  if (fresh_.size() > most_fresh) fresh_.pop_front();
}

void Auditor::work() {
  if (options_.time_share > 0 && options_.time_share < 1) take_lowest_priority();
  std::unique_lock lock(mutex_);
  try {
    const offload::Threads one(1);
    const std::unique_ptr<gpu::Backend> host = gpu::make_cpu_backend(one);
    while (true) {
      wake_.wait(lock, [&] { return ending_ || (!waiting_.empty() && affordable()); });
      if (ending_) return;
      std::unique_ptr<StepSample> sample = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      StepFidelity fidelity = measure_(*sample, *host);
      const double seconds = (seconds_of(CLOCK_THREAD_CPUTIME_ID) - start) / threads_.count();
      const double per_byte = seconds / static_cast<double>(sample->bytes());
      sample.reset();  // which takes time, and decoding must not wait for the lock
      lock.lock();
      seconds_per_byte_ = per_byte;
      measured(std::move(fidelity), seconds);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = std::current_exception();
    ending_ = true;
  }
}

void Auditor::finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (!worker_.joinable()) return;
  worker_.join();
  if (failure_) std::rethrow_exception(failure_);
  const std::unique_ptr<gpu::Backend> host = gpu::make_cpu_backend(threads_);
  while (!waiting_.empty()) {
    const bool measure = report_.measured == 0 || affordable();
    const std::unique_ptr<StepSample> sample = std::move(waiting_.front());
    waiting_.pop_front();
    if (!measure) {
      const std::lock_guard lock(mutex_);
      ++report_.dropped;
      continue;
    }
    const double start = decoding_clock();
    StepFidelity fidelity = measure_(*sample, *host);
    const std::lock_guard lock(mutex_);
    measured(std::move(fidelity), decoding_clock() - start);
  }
}

AuditReport Auditor::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

std::vector<StepFidelity> Auditor::take_measured() {
  const std::lock_guard lock(mutex_);
  std::vector<StepFidelity> taken(std::make_move_iterator(fresh_.begin()), std::make_move_iterator(fresh_.end()));
  fresh_.clear();
  return taken;
}

}  // namespace hayloft::runtime
