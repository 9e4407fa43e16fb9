#include <utility>  // boost/asio/awaitable.hpp 1.74 needs it and does not include it

#include "runtime/serve/http/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "offload/error.h"
#include "runtime/serve/http/access.h"
#include "runtime/serve/http/mailbox.h"
#include "runtime/serve/http/read_request.h"
#include "runtime/serve/http/slow_writer.h"
#include "runtime/serve/reply_writer.h"

namespace hayloft::runtime::serve::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;
using HttpRequest = beast::http::request<beast::http::string_body>;
using HttpResponse = beast::http::response<beast::http::string_body>;
using asio::use_awaitable;

constexpr std::chrono::milliseconds kLookAtClient{500};  // how often, while there is nothing to send
constexpr std::chrono::seconds kComment{5};              // between comments in a stream that has nothing else to say
constexpr std::chrono::seconds kEvent{15};               // between events in one, as far as its API has some for that
constexpr std::chrono::seconds kPatienceWanted{2};  // with a client that takes nothing, while others wait for a place
constexpr std::size_t kMostUnsent = 16384;          // tokens that wait for a client which takes them too slowly
constexpr std::chrono::seconds kDrain{2};           // for a client to notice that it is being refused

// The generations of one request; those that run are cancelled when it goes out of scope.
struct Running {
  std::vector<std::shared_ptr<Job>> jobs;
  ~Running() {
    for (const auto& job : jobs) job->cancel();
  }
};

class Connection {
 public:
  Connection(asio::ip::tcp::socket socket, Service& service) : stream_(std::move(socket)), service_(service) {
    ++service_.connections;
  }
  ~Connection() { --service_.connections; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  asio::awaitable<void> run() {
    if (service_.connections > service_.options.most_connections) {
      const Reply said = error_reply(503, "too many connections");
      co_await write(said, false);
      co_return co_await end();
    }
    while (co_await serve_one()) {
    }
    co_await end();
  }

 private:
  const ServerOptions& options() const { return service_.options; }

  // Reads and drops for a moment whatever the client still sends: closing with bytes unread would reset the connection,
  // and the client might never see why it was refused.
  asio::awaitable<void> end() {
    error_code error;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, error);
    stream_.expires_after(kDrain);
    std::array<char, 4096> dropped;
    while (!error) {
      co_await stream_.async_read_some(asio::buffer(dropped), asio::redirect_error(use_awaitable, error));
    }
  }

  // One request; true when another may follow.
  asio::awaitable<bool> serve_one() {
    head_only_ = false;
    RequestParser parser;
    error_code error;
    std::optional<Refusal> refused;
    stream_.expires_after(options().header_time);
    if (!co_await read_head(stream_, buffer_, parser, refused)) {
      if (refused) {
        const Reply said = error_reply_at(path_of(parser.get()), refused->status, refused->message);
        co_await write(said, false);
      }
      co_return false;
    }
    const auto& head = parser.get();
    head_only_ = head.method() == beast::http::verb::head;
    http_1_1_ = head.version() >= 11;
    origin_ = std::string(head[beast::http::field::origin]);
    allowed_fields_ = allowed_fields(head);
    if (const auto reply = refusal(head, options())) {
      co_await write(*reply, false);
      co_return false;
    }
    stream_.expires_after(options().body_time);
    const std::uint64_t most = most_body(head);
    const bool fits = parser.content_length().value_or(0) <= most;
    if (fits && http_1_1_ && beast::iequals(head[beast::http::field::expect], "100-continue")) {
      beast::http::response<beast::http::empty_body> go_on(beast::http::status::continue_, 11);
      co_await beast::http::async_write(stream_, go_on, asio::redirect_error(use_awaitable, error));
    }
    if (!co_await read_body(stream_, buffer_, parser, most, refused)) {
      if (refused) {
        const Reply said = error_reply_at(path_of(parser.get()), refused->status, refused->message);
        co_await write(said, false);
      }
      co_return false;
    }
    stream_.expires_never();
    const HttpRequest request = parser.release();
    // A client of HTTP/1.0 waits for the end of the connection.
    const bool keep_alive = http_1_1_ && request.keep_alive();
    if (request.method() == beast::http::verb::options) {
      const Reply said = Reply{204, "text/plain", {}};
      co_await write(said, keep_alive);
      co_return keep_alive;
    }
    Call call{head_only_ ? "GET" : std::string(request.method_string()), path_of(request), request.body()};
    const std::string target(request.target());
    if (const std::size_t at = target.find('?'); at != std::string::npos) call.query = target.substr(at + 1);
    // A lambda that is called at once would take its captures with it before the coroutine has begun.
    const auto work = [this, &call]() -> asio::awaitable<Outcome> { co_return service_.routes.outcome(call); };
    std::optional<Outcome> outcome;
    if (Routes::open_to_all(call.path)) {  // a probe waits for nothing that the workers do
      outcome = service_.routes.outcome(call);
    } else {
      outcome = co_await asio::co_spawn(service_.workers, work, use_awaitable);
    }
    if (const Reply* reply = std::get_if<Reply>(&*outcome)) {
      co_await write(*reply, keep_alive);
      co_return keep_alive;
    }
    co_return co_await generate(std::get<openai::Request>(*outcome), keep_alive);
  }

  // A request that nobody has shown a key for may have next to nothing, as methods that take no body.
  std::uint64_t most_body(const beast::http::request_header<>& head) const {
    const bool takes_one = head.method() == beast::http::verb::post && !Routes::open_to_all(path_of(head));
    return takes_one ? options().most_body : std::min<std::uint64_t>(kMostHead, options().most_body);
  }

  template <class Message>
  void add_fields(Message& message, int status) {
    message.set(beast::http::field::server, "hayloft");
    if (!options().cors_origin.empty() && !origin_.empty()) {
      message.set(beast::http::field::access_control_allow_origin, options().cors_origin);
      message.set(beast::http::field::access_control_allow_headers, allowed_fields_);
      message.set(beast::http::field::access_control_allow_methods, "GET, POST, DELETE, OPTIONS");
      message.set(beast::http::field::vary, "Origin, Access-Control-Request-Headers");
    }
    if (status == 429 || status == 503) message.set(beast::http::field::retry_after, "1");
    if (status == 401) message.set(beast::http::field::www_authenticate, "Bearer");
  }

  // An awaited call has no temporaries of its own among its arguments, here and below: g++ 12 destroys some of them
  // twice.
  asio::awaitable<void> write(const Reply& reply, bool keep_alive) {
    HttpResponse response(static_cast<beast::http::status>(reply.status), 11);
    response.set(beast::http::field::content_type, reply.type);
    response.set("X-Content-Type-Options", "nosniff");
    if (!reply.allow.empty()) response.set(beast::http::field::allow, reply.allow);
    add_fields(response, reply.status);
    response.body() = reply.body;
    response.keep_alive(keep_alive);
    response.prepare_payload();
    error_code ignored;
    stream_.expires_after(options().write_time);
    if (head_only_) {
      beast::http::response_serializer<beast::http::string_body> serializer(response);
      co_await beast::http::async_write_header(stream_, serializer, asio::redirect_error(use_awaitable, ignored));
    } else {
      co_await beast::http::async_write(stream_, response, asio::redirect_error(use_awaitable, ignored));
    }
    stream_.expires_never();
  }

  asio::awaitable<bool> generate(const openai::Request& request, bool keep_alive) {
    const auto mailbox = std::make_shared<Mailbox>(co_await asio::this_coro::executor);
    const std::unique_ptr<ReplyWriter> writer =
        make_reply_writer(request, service_.routes.served().tokenizer, std::time(nullptr));
    const auto refusal_of = [&](int status, const std::string& message) {
      return Reply{status, "application/json", error_text(request.api, status, message)};
    };
    Running running;
    std::optional<Reply> refused;
    for (std::size_t choice = 0; choice < request.generations.size() && !refused; ++choice) {
      try {
        auto job = service_.routes.engine().submit(request.generations[choice], listener_to(mailbox, choice));
        if (job) {
          running.jobs.push_back(std::move(job));
        } else if (service_.routes.engine().stopping()) {
          refused = refusal_of(503, "the server is stopping");
        } else {
          refused = refusal_of(429, "too many requests wait; try again in a moment");
        }
      } catch (const Error& error) {
        refused = refusal_of(400, error.what());
      }
    }
    if (refused) {
      co_await write(*refused, keep_alive);
      co_return keep_alive;
    }
    if (request.stream) co_return co_await stream(request, *writer, *mailbox, keep_alive);
    while (!writer->complete()) {
      if (!co_await wait_for(*mailbox, kLookAtClient)) co_return false;
      Told told;
      for (; !mailbox->events.empty() && !told.failure; mailbox->events.pop_front()) {
        told = tell(*writer, mailbox->events.front());
      }
      if (told.failure) {
        const Reply said = refusal_of(told.failure->status, told.failure->message);
        co_await write(said, keep_alive);
        co_return keep_alive;
      }
    }
    const Told whole = said_by([&] { return writer->whole(); });
    const Reply said = whole.failure ? refusal_of(whole.failure->status, whole.failure->message)
                                     : Reply{200, "application/json", whole.text};
    co_await write(said, keep_alive);
    co_return keep_alive;
  }

  // Until there are events; false when the client has left.
  asio::awaitable<bool> wait_for(Mailbox& mailbox, std::chrono::milliseconds most) {
    error_code ignored;
    if (mailbox.events.empty()) {
      mailbox.arrived.expires_after(most);
      co_await mailbox.arrived.async_wait(asio::redirect_error(use_awaitable, ignored));
    }
    char byte = 0;
    const ssize_t got = ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    co_return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
  }

  // Holds what an answer's stream has of an event, or why there is no answer.
  struct Told {
    std::string text;
    std::optional<Failure> failure;
  };

  // Returns what `say` returns. What it throws is a failure of the answer, not a connection that ends without a word.
  static Told said_by(const std::function<std::string()>& say) {
    try {
      return {say(), {}};
    } catch (const std::bad_alloc&) {
      return {{}, Failure{507, "the system has no memory left for this answer"}};
    } catch (const std::exception& error) {
      return {{}, Failure{500, error.what()}};
    }
  }

  static Told tell(ReplyWriter& answer, const Event& event) {
    if (const auto* failure = std::get_if<Failure>(&event.what)) return {{}, *failure};
    return said_by([&]() -> std::string {
      const std::size_t choice = event.choice;
      if (const auto* scored = std::get_if<Event::Scored>(&event.what)) return answer.scored(choice, scored->prompt);
      if (const auto* token = std::get_if<GeneratedToken>(&event.what)) return answer.generated(choice, *token);
      if (const auto* end = std::get_if<Event::Finished>(&event.what)) {
        return answer.finished(choice, end->reason, end->rest, end->usage);
      }
      return {};
    });
  }

  // Server-sent events. A failure before anything was sent is a reply with its status, later an event of its own.
  asio::awaitable<bool> stream(const openai::Request& request, ReplyWriter& answer, Mailbox& mailbox, bool keep_alive) {
    while (mailbox.events.empty()) {
      if (!co_await wait_for(mailbox, kLookAtClient)) co_return false;
    }
    if (const Failure* failure = std::get_if<Failure>(&mailbox.events.front().what)) {
      const Reply said =
          Reply{failure->status, "application/json", error_text(request.api, failure->status, failure->message)};
      co_await write(said, keep_alive);
      co_return keep_alive;
    }
    beast::http::response<beast::http::empty_body> head(beast::http::status::ok, 11);
    head.set(beast::http::field::content_type, "text/event-stream; charset=utf-8");
    head.set(beast::http::field::cache_control, "no-cache");
    add_fields(head, 200);
    head.keep_alive(keep_alive);
    if (http_1_1_) head.chunked(true);
    beast::http::response_serializer<beast::http::empty_body> serializer(head);
    error_code error;
    stream_.expires_after(options().write_time);
    co_await beast::http::async_write_header(stream_, serializer, asio::redirect_error(use_awaitable, error));
    stream_.expires_never();
    error_code ignored;
    stream_.socket().set_option(asio::socket_base::send_buffer_size(kStreamBuffer), ignored);
    std::string text = answer.begin();
    auto last_sent = std::chrono::steady_clock::now(), last_event = last_sent;
    bool failed = false;
    while (!error && !answer.complete() && !failed) {
      for (; !mailbox.events.empty() && !failed; mailbox.events.pop_front()) {
        const Event& event = mailbox.events.front();
        if (const auto* reading = std::get_if<Event::Reading>(&event.what)) {
          text += fmt::format(": reading the prompt, {} of {} tokens\n\n", reading->done, reading->total);
          continue;
        }
        const Told told = tell(answer, event);
        failed = told.failure.has_value();
        if (failed) text += answer.failed(told.failure->status, told.failure->message);
        if (!told.text.empty()) last_event = std::chrono::steady_clock::now();
        text += told.text;
      }
      if (answer.complete() || failed) break;
      const auto now = std::chrono::steady_clock::now();
      if (now - last_event > kEvent) text += answer.waiting(), last_event = now;
      if (text.empty() && now - last_sent > kComment) text = ": waiting\n\n";
      if (!text.empty()) {
        error = co_await send(text, mailbox, true);
        last_sent = std::chrono::steady_clock::now();
      } else if (!co_await wait_for(mailbox, kLookAtClient)) {
        co_return false;
      }
    }
    if (error) co_return false;
    text += answer.end(failed);
    error = co_await send(text, mailbox, false);
    if (!error && http_1_1_) {
      stream_.expires_after(options().write_time);
      co_await asio::async_write(stream_, beast::http::make_chunk_last(), asio::redirect_error(use_awaitable, error));
    }
    stream_.expires_never();
    co_return keep_alive && !error;
  }

  // A piece of a stream, which is then empty. An error also where the client takes nothing for too long, or falls too
  // far behind: an answer that is still being made holds a place that others may wait for, and grows here.
  asio::awaitable<error_code> send(std::string& text, const Mailbox& mailbox, bool being_made) {
    std::string bytes = std::exchange(text, {});
    if (http_1_1_) bytes = fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
    SlowWriter writer(stream_);
    error_code error;
    while (!writer.done(bytes) && !error) {
      error = co_await writer.write_some(bytes, kLookAtClient);
      const bool wanted = being_made && service_.routes.engine().figures().waiting > 0;
      const auto patience = wanted ? kPatienceWanted : options().write_time;
      if (!error && (writer.idle() > patience || mailbox.events.size() > kMostUnsent)) error = beast::error::timeout;
    }
    co_return error;
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMostAhead};
  Service& service_;
  // These belong to the request being served.
  std::string origin_;
  std::string allowed_fields_;
  bool head_only_ = false;  // HEAD: the answer has no body
  bool http_1_1_ = true;    // HTTP/1.0 knows no chunks: there the end of the connection is that of the answer
};

}  // namespace

asio::awaitable<void> serve_connection(asio::ip::tcp::socket socket, Service& service) {
  try {
    Connection connection(std::move(socket), service);
    co_await connection.run();
  } catch (const std::exception&) {  // no memory for it, or the system has none: the connection ends
  }
}

}  // namespace hayloft::runtime::serve::http
