#include "runtime/serve/ranks/leader.h"

#include <exception>

#include "runtime/peers/agreement.h"
#include "runtime/peers/tell.h"

namespace hayloft::runtime::serve {

std::shared_ptr<Leader> make_leader(cluster::Communicator& ranks, const Leader::Lost& lost) {
  return ranks.several() ? std::make_shared<Leader>(ranks, lost) : nullptr;
}

template <class... What>
void Leader::add(const What&... what) {
  const std::lock_guard lock(mutex_);
  (script_.add(what), ...);
}

void Leader::together(const std::function<void()>& work) {
  try {
    std::string script;
    {
      const std::lock_guard lock(mutex_);
      script = script_.take();
    }
    cluster::tell(ranks_, cluster::Traffic::turn, script);
    work();
  } catch (const cluster::SharedError&) {
    throw;
  } catch (const std::exception& error) {
    if (lost_) lost_(error.what());
    throw;
  }
}

std::uint32_t Leader::open() {
  add(Deed::open, ++last_);
  return last_;
}

std::uint32_t Leader::fork(std::uint32_t from) {
  add(Deed::fork, ++last_, from);
  return last_;
}

void Leader::drop(std::uint32_t session) {
  add(Deed::drop, session);
}

void Leader::append(std::uint32_t session, std::span<const std::int32_t> tokens, bool more_follows,
                    const std::function<void()>& work) {
  add(Deed::append, session, std::uint32_t{more_follows}, tokens);
  together(work);
}

void Leader::score(std::uint32_t session, std::span<const std::int32_t> tokens, const std::function<void()>& work) {
  add(Deed::score, session, tokens);
  together(work);
}

void Leader::prepare(std::uint32_t session, const std::function<void()>& work) {
  add(Deed::prepare, session);
  together(work);
}

void Leader::step(std::span<const std::int32_t> sessions, std::span<const std::int32_t> tokens,
                  const std::function<void()>& work) {
  add(Deed::step, sessions, tokens);
  together(work);
}

std::uint32_t Leader::open_saved(const std::string& context, const std::function<void()>& work) {
  add(Deed::open_saved, ++last_, std::string_view(context));
  together(work);
  return last_;
}

void Leader::leave() {
  add(Deed::leave);
  together([] {});
}

}  // namespace hayloft::runtime::serve
