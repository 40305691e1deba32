// Text from elsewhere, fit to be shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace hvd {

/// Where `text` stops being UTF-8 (RFC 3629: shortest form, no surrogates), or npos if it never does.
size_t find_bad_utf8(std::string_view text);

/// At most `most` bytes of `text` in one line: control characters, C1 ones included, become spaces, bytes
/// that are no UTF-8 become '?', and no character is cut in two.
std::string printable(std::string_view text, size_t most = 512);

/// A duration that was measured, as a number of seconds for people: "5.04", "0.0031", "600".
std::string seconds_text(Duration duration);

}  // namespace hvd
