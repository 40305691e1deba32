// A file's bytes without std::ifstream, which would bring the locales of a static libstdc++ into the library.
#pragma once

#include <cstddef>
#include <string>

namespace hvd {

/// Reads the first bytes of a file, at most `most`. False if it can't be opened or read.
bool read_file(const std::string& path, size_t most, std::string* ret_bytes);

}  // namespace hvd
