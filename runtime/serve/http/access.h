#pragma once

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <optional>
#include <string>

#include "runtime/serve/http/server.h"

namespace hayloft::runtime::serve::http {

// Returns where a request goes to, without the query.
std::string path_of(const boost::beast::http::request_header<>& head);

// Why a request with these fields may not come in; nothing: it may. Pages of other sites are kept out, also those that
// have had their name resolved to this machine; and everybody without the key, where there is one.
std::optional<Reply> refusal(const boost::beast::http::request_header<>& head, const ServerOptions& options);

// The fields that a page of an allowed origin may send, as Access-Control-Allow-Headers tells them: those that its
// browser asks about. The packages for such pages send fields of their own, x-stainless-lang and many more, which
// change nothing here.
std::string allowed_fields(const boost::beast::http::request_header<>& head);

}  // namespace hayloft::runtime::serve::http
