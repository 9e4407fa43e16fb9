#include "runtime/serve/ranks/follow.h"

#include <map>
#include <stdexcept>

#include "runtime/peers/agreement.h"
#include "runtime/peers/tell.h"

namespace hayloft::runtime::serve {
namespace {

class Follower {
 public:
  Follower(const ModelSource& source, offload::Arena& arena, const Contexts& contexts, const SessionOptions& options,
           const SharedMethod& method)
      : source_(source), arena_(arena), contexts_(contexts), options_(options), method_(method) {}

  void run() {
    for (bool left = false; !left;) {
      std::string bytes;
      cluster::tell(options_.peers(), cluster::Traffic::turn, bytes);
      ScriptReader script(std::move(bytes));
      while (!script.ended()) left = play(script.deed(), script);
    }
  }

 private:
  // True when that was the last.
  bool play(Deed deed, ScriptReader& script) {
    switch (deed) {
      case Deed::open: {
        const std::uint32_t number = script.number();
        Session session(source_.model, arena_, options_);
        session.set_method(method_);
        keep(number, std::move(session));
        break;
      }
      case Deed::open_saved:
        open_saved(script);
        break;
      case Deed::fork: {
        const std::uint32_t number = script.number();
        keep(number, session(script).fork());
        break;
      }
      case Deed::drop:
        sessions_.erase(script.number());
        break;
      case Deed::append: {
        Session& of = session(script);
        const bool more_follows = script.number() != 0;
        of.append(script.tokens(), {}, more_follows);
        break;
      }
      case Deed::score: {
        Session& of = session(script);
        of.score(script.tokens());
        break;
      }
      case Deed::prepare: {
        Session& of = session(script);
        try {
          of.prepare(*method_);
        } catch (const cluster::SharedError&) {  // the first tells its client
        }
        break;
      }
      case Deed::step:
        step(script);
        break;
      case Deed::leave:
        return true;
    }
    return false;
  }

  void keep(std::uint32_t number, Session session) {
    session.share_workspace(workspace_);
    sessions_.insert_or_assign(number, std::move(session));
  }

  Session& session(ScriptReader& script) { return session(script.number()); }
  Session& session(std::uint32_t number) {
    const auto found = sessions_.find(number);
    if (found == sessions_.end()) throw std::logic_error("the first rank names a session that is not there");
    return found->second;
  }

  void open_saved(ScriptReader& script) {
    const std::uint32_t number = script.number();
    const std::string context = script.text();
    try {
      keep(number, serve::open_saved(source_, arena_, contexts_.path(context), options_, method_));
    } catch (const cluster::SharedError&) {  // the first tells its client
    }
  }

  void step(ScriptReader& script) {
    const std::vector<std::int32_t> numbers = script.tokens(), tokens = script.tokens();
    std::vector<Session::Step> steps(numbers.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      steps[i].session = &session(static_cast<std::uint32_t>(numbers[i]));
      steps[i].token = tokens.at(i);
    }
    Session::step_together(steps);
    for (const Session::Step& each : steps) {
      if (each.failure) std::rethrow_exception(each.failure);
    }
  }

  const ModelSource& source_;
  offload::Arena& arena_;
  const Contexts& contexts_;
  const SessionOptions& options_;
  const SharedMethod& method_;
  std::shared_ptr<Workspace> workspace_ = std::make_shared<Workspace>();
  std::map<std::uint32_t, Session> sessions_;
};

}  // namespace

void follow(const ModelSource& source, offload::Arena& arena, const Contexts& contexts, const SessionOptions& options,
            const SharedMethod& method) {
  Follower(source, arena, contexts, options, method).run();
}

}  // namespace hayloft::runtime::serve
