#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include "runtime/serve/http/mailbox.h"

#include <boost/asio/post.hpp>

namespace hayloft::runtime::serve::http {
namespace {

class Poster : public GenerationListener {
 public:
  Poster(const std::shared_ptr<Mailbox>& mailbox, std::size_t choice)
      : mailbox_(mailbox), executor_(mailbox->arrived.get_executor()), choice_(choice) {}

  void reading(std::int64_t done, std::int64_t total) override { post(Event::Reading{done, total}); }
  void scored(std::vector<TokenChoice> prompt) override { post(Event::Scored{std::move(prompt)}); }
  void generated(GeneratedToken token) override { post(std::move(token)); }
  void finished(FinishReason reason, const std::string& rest, const Usage& usage) override {
    post(Event::Finished{reason, rest, usage});
  }
  void failed(const Failure& failure) override { post(failure); }

 private:
  template <class What>
  void post(What what) {
    boost::asio::post(executor_, [mailbox = mailbox_, event = Event{choice_, std::move(what)}]() mutable {
      if (const auto alive = mailbox.lock()) {
        alive->events.push_back(std::move(event));
        alive->arrived.cancel();
      }
    });
  }

  std::weak_ptr<Mailbox> mailbox_;
  boost::asio::any_io_executor executor_;
  std::size_t choice_;
};

}  // namespace

std::shared_ptr<GenerationListener> listener_to(const std::shared_ptr<Mailbox>& mailbox, std::size_t choice) {
  return std::make_shared<Poster>(mailbox, choice);
}

}  // namespace hayloft::runtime::serve::http
