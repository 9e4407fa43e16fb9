#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

// A client that sends what it is told and nothing else, so that tests can send what no client would.
namespace hayloft::test {

struct HttpAnswer {
  int status = 0;      // 0: none
  bool reset = false;  // the connection was, instead of closed
  std::string head;    // with the status line
  std::string body;    // chunks joined
};

class HttpClient {
 public:
  // `receive_buffer`: bytes that the system takes for it before it reads; 0: as many as usual.
  explicit HttpClient(std::uint16_t port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }
  ~HttpClient() { ::close(socket_); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  void end_sending() const { ::shutdown(socket_, SHUT_WR); }

  // Says whether something has come already, or the end.
  bool told() const {
    char byte = 0;
    return ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
  }

  // Returns what comes next, at most; empty: the server has closed.
  std::string some() const {
    char bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    reset_ = got < 0;
    return got > 0 ? std::string(bytes, static_cast<std::size_t>(got)) : std::string();
  }

  // Everything until the server closes.
  HttpAnswer answer() const {
    std::string all;
    for (std::string more = some(); !more.empty(); more = some()) all += more;
    HttpAnswer answer;
    answer.reset = reset_;
    const std::size_t end = all.find("\r\n\r\n");
    if (all.rfind("HTTP/1.1 ", 0) != 0 || end == std::string::npos) return answer;
    answer.status = std::stoi(all.substr(9, 3));
    answer.head = all.substr(0, end);
    answer.body = all.substr(end + 4);
    if (answer.head.find("chunked") != std::string::npos) answer.body = joined(answer.body);
    return answer;
  }

 private:
  static std::string joined(std::string_view chunks) {
    std::string body;
    for (;;) {
      const std::size_t line = chunks.find("\r\n");
      if (line == std::string_view::npos) return body;
      const std::size_t size = std::stoul(std::string(chunks.substr(0, line)), nullptr, 16);
      if (size == 0) return body;
      body += chunks.substr(line + 2, size);
      chunks.remove_prefix(std::min(chunks.size(), line + 2 + size + 2));
    }
  }

  int socket_;
  mutable bool reset_ = false;
};

inline HttpAnswer http(std::uint16_t port, const std::string& method, const std::string& path,
                       const std::string& body = {}, const std::string& fields = {}) {
  const HttpClient client(port);
  client.send(method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + fields +
              "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  return client.answer();
}

}  // namespace hayloft::test
