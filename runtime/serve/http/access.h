#pragma once

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <optional>
#include <string>

#include "runtime/serve/http/server.h"

namespace hayloft::runtime::serve::http {

// Why a request with these fields may not come in; nothing: it may. Pages of other sites are kept out, also those that
// have had their name resolved to this machine; and everybody without the key, where there is one.
std::optional<Reply> refusal(const boost::beast::http::request_header<>& head, const ServerOptions& options);

}  // namespace hayloft::runtime::serve::http
