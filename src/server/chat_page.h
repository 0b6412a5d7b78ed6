// The chat page, web/index.html, as it is built into the program (cmake/embed_file.cmake).
#pragma once

#include <string_view>

namespace carat::server {

/// The whole page: HTML in UTF-8 that asks nothing of any other server.
extern const std::string_view kChatPage;

/// The Content-Security-Policy to send with it: what the page does not need, no text of a model can make it do.
inline constexpr std::string_view kChatPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace carat::server
